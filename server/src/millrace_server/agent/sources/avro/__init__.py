"""The source `avro`: what Flume's agents and clients send by Avro RPC."""
