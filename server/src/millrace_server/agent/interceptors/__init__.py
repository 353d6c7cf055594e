"""Interceptors, which change or drop events between a source and its channels."""
