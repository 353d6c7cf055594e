"""Channel selectors: which of a source's channels an event goes to."""
