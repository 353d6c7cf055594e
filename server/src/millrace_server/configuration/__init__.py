"""The server's TOML configuration: reading, checking and cross-references."""
