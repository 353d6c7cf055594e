"""The source `exec`: what a command writes."""
