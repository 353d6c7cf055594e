"""The source `grpc`: callers append to it as to a channel."""
