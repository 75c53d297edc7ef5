"""The tensor IR: hash-consed terms, views of them, and the algebra that builds terms in normal form."""
