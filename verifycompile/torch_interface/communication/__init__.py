"""Collectives as programs call them: how they are captured, and what is known of them until a program waits."""
