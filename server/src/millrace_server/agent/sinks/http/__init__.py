"""The sink `http`: posts events to a URL."""
