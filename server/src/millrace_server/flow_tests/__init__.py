"""Tests of flows: what a source's interceptors and selector do with events, without a server."""
