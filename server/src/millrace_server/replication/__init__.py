"""The log of a channel in a stream of NATS JetStream, which outlives the machine."""
