"""Writes DataFrames into channels, in batches and streams."""
