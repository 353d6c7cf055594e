"""The interceptor `uuid`: an identity for each event."""

import os
from typing import Literal

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig

_UUID_BYTES = 16
_VARIANTS = "89ab"


class UuidConfig(InterceptorConfig):
    """A header with a random identity (UUID, version 4).

    An event that is read again after a crash gets another one: a channel that had stored it before keeps the former.
    """

    type: Literal["uuid"]
    """An identity for each event."""

    header: str = "id"
    """The header."""

    prefix: str = ""
    """What stands before it."""

    preserve_existing: bool = True
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return _Uuid(self)


class _Uuid:
    def __init__(self, config: UuidConfig) -> None:
        self._config = config

    def intercept(self, table: EventTable) -> EventTable:
        config = self._config
        table.give(config.header, random_uuids(config.prefix, table.count), preserve_existing=config.preserve_existing)
        return table


def random_uuids(prefix: str, count: int) -> list[str]:
    """So many random UUIDs; several times as quick as making them one by one."""
    digits = os.urandom(_UUID_BYTES * count).hex()
    step = 2 * _UUID_BYTES
    return [
        f"{prefix}{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}-"
        f"{_VARIANTS[int(digits[at + 16], 16) & 3]}{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, step * count, step)
    ]
