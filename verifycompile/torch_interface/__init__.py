"""Every use of torch's private interfaces. Each one has a test of its own in ``tests/torch_interface``."""
