"""Addresses, sockets and the HTTP server."""
