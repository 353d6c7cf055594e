"""Tools that read, mend, copy and bring back the log of a file channel, without a server."""
