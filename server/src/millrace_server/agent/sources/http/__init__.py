"""The `http` source: events sent by POST."""
