"""Where finished files go: a directory of this machine, or another file system."""
