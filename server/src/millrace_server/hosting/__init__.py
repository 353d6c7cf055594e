"""What a daemon and an embedded agent share: channels, flows and the data directory."""
