"""What Dynamo and AOTAutograd make of a Python frame: its graph, what enters and leaves it, and where it breaks."""
