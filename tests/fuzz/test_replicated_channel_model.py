"""A channel in a stream driven at random like a file channel; with each restart another server owns it."""

import asyncio
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from millrace_server.channels import stream_store
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import DiskChannelConfig
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stream_store import StreamStores, TakeOver
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.replication import stream_log
from millrace_server.replication.engine import Engine
from millrace_server.replication.stream import StreamLimits
from millrace_server.replication.stream_log import StreamWriter
from tests.channel_events import RESPONSE_BYTES_MAX, begin, open_channel
from tests.fuzz.test_channel_model import SETTINGS
from tests.fuzz.test_file_channel_model import FileChannelModel
from tests.simulated_channels import EPOCHS_FROM, Here, InTurns, SimulatedChannel
from tests.simulated_disk import SimulatedDisk
from tests.stream_logs import new_name

_LIMITS = StreamLimits(replicas=1, stream_bytes_max=1 << 24)


class _TurnStreamWriter(InTurns, StreamWriter):
    """Writes to a stream in turns; each waits for the engine."""


class _Stores(StreamStores):
    """Opens channels on the event loop's thread."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._openers = Here()


def _model(engine: Engine) -> type[FileChannelModel]:
    class ReplicatedChannelModel(FileChannelModel):
        """The same calls on a channel in a stream. A former owner is not stopped, it only does nothing any more."""

        def __init__(self) -> None:
            super().__init__()
            self._name = new_name()
            self._channel_epoch = 0
            monkeypatch = self._ending.enter_context(pytest.MonkeyPatch.context())
            monkeypatch.setattr(stream_log, "StreamWriter", _TurnStreamWriter)
            monkeypatch.setattr(stream_store, "_log", mock.Mock())
            monkeypatch.setattr("millrace_server.replication.stream.time.time_ns", lambda: EPOCHS_FROM * 1000)

        async def _open_again(self) -> None:
            self._directory = TxnDirectory(100)
            self._other = open_channel("other", directory=self._directory, lease_seconds=3600)
            begin(self._other, "foreign")
            limits = self._account.limits
            assert isinstance(limits, DiskChannelConfig)
            changes: list[str] = []
            attempt = TakeOver(_LIMITS, "127.0.0.1:1", self._channel_epoch)
            stores = _Stores(engine)
            store, chain = await stores.open(self._name, limits, attempt, ReplayProgress(), changes.append)
            self._channel_epoch = chain.epoch
            self.channel = Channel("orders", limits, store.storage, self._directory, RESPONSE_BYTES_MAX)
            self.opened = SimulatedChannel(SimulatedDisk([]), limits, store, self.channel, self._directory, changes)
            self._set_clock()

    return ReplicatedChannelModel


def test_replicated_channel_driven_at_random_keeps_its_account(nats_url: str) -> None:
    """Whatever is called, and whichever server owns it, no event is lost or duplicated."""
    engine = asyncio.run(Engine.connected([nats_url]))
    try:
        run_state_machine_as_test(_model(engine), settings=settings(SETTINGS, max_examples=30))
    finally:
        engine.close()
