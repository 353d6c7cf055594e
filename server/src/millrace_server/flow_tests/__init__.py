"""Tests of flows: what a source's interceptors and selector make of events, without a server."""
