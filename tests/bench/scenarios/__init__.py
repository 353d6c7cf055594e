"""The scenarios, one module each."""
