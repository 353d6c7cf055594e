"""Channels and transactions. Nothing in here knows gRPC.

One event loop owns all state, so nothing in here locks: whatever happens between two awaits is atomic, and whoever
waited looks at the state again.
"""
