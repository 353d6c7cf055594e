"""What file channels keep on disk."""
