"""Ports for servers that are told where to listen."""

from examples.free_ports import free_ports


def free_port() -> int:
    """Returns a port on loopback that stays free: the system gives it to no program that asks for any."""
    [port] = free_ports(1)
    return port
