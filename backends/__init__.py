"""What torch loads: the ``verify`` backend and the hook behind the environment flag."""
