"""A taildir source without an event loop, with channels that remember producers, and a clock that the test moves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.file_scheduler import POLL_SECONDS, FileChunk, FileScheduler
from millrace_server.agent.sources.taildir.positions import POSITIONS_FILE
from millrace_server.agent.sources.taildir.register import FileRegister
from millrace_server.agent.sources.taildir.tailed_file import TailedFile
from millrace_server.channels.stamps import Stamp, StampLedger

BATCH_EVENTS_MAX = 100


def config_of(*paths: Path | str, **settings: Any) -> TaildirSourceConfig:
    """The configuration of a source of these files."""
    written = {"type": "taildir", "channels": ["orders"], "paths": [str(path) for path in paths], **settings}
    return TaildirSourceConfig.model_validate(written, strict=True)


class CutOffError(Exception):
    """Raised when a channel must store nothing more."""


class StoredEvent(NamedTuple):
    """An event as stored in a channel."""

    producer_id: str
    path: str
    body: bytes


class StoringChannel:
    """A channel that stores events with new numbers.

    Attributes:
        events: The stored events.
        stores_left: The number of batches that it stores before it refuses; None: no limit.
    """

    def __init__(self) -> None:
        self.ledger = StampLedger()
        self.events: list[StoredEvent] = []
        self.stores_left: int | None = None

    def store(self, file: TailedFile, part: Lines) -> None:
        """Stores a batch; raises BadArgumentError if its stamp partly overlaps the stored ranges."""
        if self.stores_left == 0:
            raise CutOffError
        stamp = Stamp(file.producer_id, part.start, part.end - 1)
        for start, stop in self.ledger.new_ranges(stamp, part.count):
            self.events += [StoredEvent(file.producer_id, file.path, body) for body in part.bodies[start:stop]]
        self.ledger.accept(stamp)
        if self.stores_left is not None:
            self.stores_left -= 1

    def forget(self) -> None:
        """Forgets all producers, as a channel in memory does with its process."""
        self.ledger = StampLedger()


class Tailing:
    """A running source on one thread.

    Attributes:
        now: The time of its clock.
        channels: Its channels.
        chunks: The chunks read, in order.
    """

    def __init__(self, directory: Path, config: TaildirSourceConfig, channel_count: int = 1, name: str = "app") -> None:
        self._place = SourceContext(name, directory)
        self.now = 1_000.0
        self.channels = [StoringChannel() for _ in range(channel_count)]
        self.chunks: list[FileChunk] = []
        self._config = config
        self.start()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in the first channel."""
        return [event.body for event in self.channels[0].events]

    @property
    def bodies_by_file(self) -> list[list[bytes]]:
        """The bodies of each file in the first channel, in the order of their first events."""
        files: dict[str, list[bytes]] = {}
        for event in self.channels[0].events:
            files.setdefault(event.producer_id, []).append(event.body)
        return list(files.values())

    @property
    def files(self) -> Iterable[TailedFile]:
        """The files that are tailed."""
        return self.register.files.values()

    @property
    def wait_seconds(self) -> float:
        """The time for which the source waits now."""
        return self._scheduler.wait_seconds

    @property
    def positions_path(self) -> Path:
        """The file with the saved positions."""
        return self._place.directory / POSITIONS_FILE

    def start(self, config: TaildirSourceConfig | None = None) -> None:
        """Starts a source with the state on the disk and in the channels."""
        self._config = config or self._config
        self.register = FileRegister(self._config, self._place, self._stored_ranges)
        self.register.load()
        self._scheduler = FileScheduler(self._config, self.register, lambda: self.now)

    def _stored_ranges(self, producer_id: str) -> list[list[tuple[int, int]]]:
        return [list(channel.ledger.intervals_of(producer_id)) for channel in self.channels]

    def run(self, seconds: float = 0.0) -> None:
        """Runs until nothing is left to read, and then for this many seconds."""
        self._drain()
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + POLL_SECONDS, end)
            self._drain()

    def step(self) -> bool:
        """Reads and stores one chunk; returns whether there was one."""
        chunk = self._scheduler.next_chunk()
        if chunk is not None:
            self.chunks.append(chunk)
            for lines in chunk.parts:
                for part in lines.parts(BATCH_EVENTS_MAX):
                    for channel in self.channels:
                        channel.store(chunk.file, part)
                    chunk.file.stored = part.end
        return chunk is not None

    def _drain(self) -> None:
        while self.step():
            pass

    def crash(self) -> None:
        """Ends the source as SIGKILL does, without saving anything."""
        for file in self.register.files.values():
            file.close()

    def stop(self) -> None:
        """Ends the source in order."""
        self._scheduler.close()


def append(path: Path, *lines: str | bytes) -> None:
    """Adds lines to a file, which is created if it is missing."""
    with path.open("ab") as file:
        file.writelines((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)


def numbered(first: int, stop: int) -> list[bytes]:
    """Lines with these numbers, all of the same length."""
    return [b"line %06d of a log" % number for number in range(first, stop)]
