"""Lines and events in a stream of bytes."""
