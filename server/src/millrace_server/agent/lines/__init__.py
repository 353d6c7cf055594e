"""Lines: how bytes that come in become events."""
