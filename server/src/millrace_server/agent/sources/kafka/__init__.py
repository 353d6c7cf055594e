"""The source `kafka`: records of Kafka topics, each exactly once."""
