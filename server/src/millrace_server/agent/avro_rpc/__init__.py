"""Flume's Avro RPC: what the source and the sink `avro` share, as functions of bytes without connections."""
