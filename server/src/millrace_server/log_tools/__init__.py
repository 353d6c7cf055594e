"""Tools that verify, dump, repair, back up and restore the log of a file channel, without a server."""
