"""Sources: what brings events into channels."""
