"""Reads channels as DataFrames, in batches and streams."""
