"""The write-ahead log of a file channel. It knows records and positions, and nothing of channels; see FORMAT.md."""
