"""The source `exec`, which runs a command and stores its output."""
