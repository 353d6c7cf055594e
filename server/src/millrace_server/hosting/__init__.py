"""Channels, flows, signals and the data directory, for the daemon and the embedded agent."""
