"""A whole training step as one graph: its gradients, its optimizer, and what it leaves behind."""
