"""When a frame that was verified is verified again: guards of our own, and what traced code read from outside."""
