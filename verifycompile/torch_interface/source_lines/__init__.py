"""Where in the user's files a node, a number or a style of a plan comes from, and what it is called there."""
