"""The sink `kafka`: events in Kafka topics, each exactly once for consumers that read committed records."""
