"""What the source and the sink `kafka` share: the settings of their clients, and the names of headers."""
