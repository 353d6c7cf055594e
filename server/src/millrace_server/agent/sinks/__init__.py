"""Sinks: what takes events out of channels and brings them elsewhere."""
