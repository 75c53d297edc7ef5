"""From FX graphs to the IR."""
