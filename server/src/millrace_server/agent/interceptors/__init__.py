"""Interceptors: what changes or drops events between a source and its channels."""
