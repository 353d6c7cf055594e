"""Sink groups: several sinks that empty one channel together."""
