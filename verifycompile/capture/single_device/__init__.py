"""The single-device spec, given or recovered, and what it has in common with the parallel program."""
