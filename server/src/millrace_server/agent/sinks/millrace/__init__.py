"""The sink `millrace`: forwards events to a channel of another server."""
