"""Samples, losses and gradients of data-parallel programs, and whole training steps."""
