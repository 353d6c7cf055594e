"""The agent: runs the sources that fill the server's channels, and the sinks that empty them.

    source -> interceptors -> selector -> channels -> sink

A source hands batches to its ChannelWriter, which returns once every channel has stored them durably. A sink takes
deliveries from its ChannelReader, and settles each once its events are safe elsewhere. Everything runs on the server's
event loop; calls that block run on threads.
"""
