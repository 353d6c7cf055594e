"""The source `netcat`: a line over TCP is an event, and is answered once it is stored."""
