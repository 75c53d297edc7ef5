"""All ranks of a pretended job in one process, a thread for each, which communicate with one another."""
