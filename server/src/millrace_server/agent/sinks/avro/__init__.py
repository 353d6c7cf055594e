"""The sink `avro`: sends events to Flume's Avro sources."""
