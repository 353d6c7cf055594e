"""Which release this is."""

from importlib.metadata import version

VERSION = version("millrace-server")
