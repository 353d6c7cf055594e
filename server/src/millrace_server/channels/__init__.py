"""Channels and transactions. Nothing in here knows gRPC.

One event loop owns all state, so channels hold no locks: everything between two awaits is atomic, and a coroutine that
has waited checks the state again.
"""
