"""Where a program hands its events to the sources of type `embedded`."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace_server.agent.channel_writer import ChannelWriter


class EmbeddedSources:
    """The writers of embedded sources, by the source's name, while they are at work."""

    def __init__(self) -> None:
        self._writers: dict[str, ChannelWriter] = {}

    @contextmanager
    def open_for(self, name: str, writer: ChannelWriter) -> Iterator[None]:
        """Inside, a program finds the writer."""
        self._writers[name] = writer
        try:
            yield
        finally:
            del self._writers[name]

    def find(self, name: str) -> ChannelWriter | None:
        """The writer of a source; None while the source is not at work."""
        return self._writers.get(name)
