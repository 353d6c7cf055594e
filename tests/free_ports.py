"""Ports for servers that are told where to listen."""

import socket


def free_port() -> int:
    """A port on loopback that is free at the moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
