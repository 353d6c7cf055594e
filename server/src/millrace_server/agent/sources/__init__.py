"""Sources, which write events into channels."""
