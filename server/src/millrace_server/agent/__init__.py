"""The agent: what brings events into the server's channels by itself, and takes them on from there.

    source -> interceptors -> selector -> channels -> sink

A source hands batches to its writer, which answers once every channel has stored them for good. A sink takes
deliveries from its reader, and settles each of them once its events are safe elsewhere. Everything runs on the server's
event loop; what blocks runs on threads.
"""
