"""The source `netcat`: a line over TCP is an event, and is acknowledged once it is stored."""
