"""What the command ``verifycompile`` does besides explaining: jobs under the flag, and what came of them."""
