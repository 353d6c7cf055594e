"""How events are written into one file, for each format."""
