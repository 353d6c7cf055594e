"""Channels as DataFrames: batch reads, streams, and the claims that keep what they read."""
