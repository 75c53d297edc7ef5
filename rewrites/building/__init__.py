"""What the builder of declarations is made of, each upon the one before: numbers, layout, concatenation."""
