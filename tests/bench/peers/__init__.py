"""Servers that others use for the same, each under its own client, where both are installed. Nothing needs them."""
