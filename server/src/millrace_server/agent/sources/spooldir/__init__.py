"""The source `spooldir`: complete files that are put into a directory."""
