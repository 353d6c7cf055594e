"""The console: the page at `/` of the HTTP port, and the API that it uses."""
