"""The engines of `Consumer` and `AsyncConsumer`."""
