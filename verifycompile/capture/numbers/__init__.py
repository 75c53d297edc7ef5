"""Numbers that a program or its model holds: where they come from, and which of them may differ by rank."""
