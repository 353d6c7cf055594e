"""The graph of an agent's flows."""
