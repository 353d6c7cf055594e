"""The HTTP port: health, metrics, channels and components."""
