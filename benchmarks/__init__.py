"""Measures what verification costs beside the capture of the same graphs."""
