"""DataFrames into channels: batch saves and streams."""
