"""The source `spooldir`: files that are put into a directory and not changed any more."""
