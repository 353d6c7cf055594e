"""The gRPC face: turns requests into calls on channels, and errors into statuses."""
