"""The selector `load_balancing`: each event to one of the channels."""

import random
from collections.abc import Mapping, Sequence
from typing import Literal
from zlib import crc32

from pydantic import ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors.selector import Balancer, Choice, Selector, SelectorConfig
from millrace_server.channels.channel import Channel


class LoadBalancingConfig(SelectorConfig):
    """Each event goes to one of the channels.

    A channel without room is passed over while another one has some; with `key_hash` its events wait for it. Where a
    source can read its events again after a crash, as `taildir` does, the channels should all be of type `file`, with
    each commit synced: one that has forgotten what it had accepted gets again what went to another one.
    """

    type: Literal["load_balancing"]
    """To one of the channels."""

    policy: Literal["round_robin", "random", "key_hash", "least_full"] = "round_robin"
    """Which one. `round_robin`: the next; `random`: any; `least_full`: the one with most room: one for a whole batch.
    `key_hash`: for each event the one that its key stands for: events of one key stay in their order."""

    header: str | None = None
    """The header that `key_hash` takes as the key. None, or an event without it: the body is the key."""

    @field_validator("header")
    @classmethod
    def _check_has_a_use(cls, header: str | None, info: ValidationInfo) -> str | None:
        policy = info.data.get("policy", "key_hash")
        if header is not None and policy != "key_hash":
            raise ValueError(f'is {shown_value(header)}; it is only for policy "key_hash", not {shown_value(policy)}')
        return header

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset()

    def make(self, channels: Sequence[str]) -> Selector | Balancer:
        match self.policy:
            case "round_robin":
                return RoundRobin()
            case "random":
                return RandomPick()
            case "least_full":
                return LeastFull()
            case "key_hash":
                return _KeyHash(channels, self.header)


class RoundRobin(Balancer):
    """Goes from one channel to the next."""

    def __init__(self) -> None:
        self._passed: dict[str, int] = {}
        self._picks = 0

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        # Who was picked longest ago is next: so it goes around, whoever is passed over in between.
        picked = min(candidates, key=lambda channel: self._passed.get(channel.name, 0))
        self._picks += 1
        self._passed[picked.name] = self._picks
        return picked


class RandomPick(Balancer):
    """Any channel, each as likely as the others."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return random.choice(candidates)  # noqa: S311 - spreads load, guards no secret


class LeastFull(Balancer):
    """The channel of whose capacity, in events or in bytes, the smallest part is in use."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return min(candidates, key=_fullness)


def _fullness(channel: Channel) -> float:
    room = channel.contents.room
    return max(room.event_count / room.events_max, room.body_bytes / room.body_bytes_max)


class _KeyHash:
    def __init__(self, channels: Sequence[str], header: str | None) -> None:
        self._channels = channels
        self._header = header

    def select(self, table: EventTable) -> Mapping[str, Choice]:
        keys = None if self._header is None else table.headers.get(self._header)
        if isinstance(keys, str):
            return {self._channels[self._index_of(keys)]: True}
        if keys is None:
            count = len(self._channels)
            indexes = [crc32(body) % count for body in table.bodies]
        else:
            # Keys come again and again.
            known = {key: self._index_of(key) for key in set(keys) if key is not None}
            indexes = [
                self._index_of(body) if key is None else known[key]
                for key, body in zip(keys, table.bodies, strict=True)
            ]
        return {name: [index == mine for index in indexes] for mine, name in enumerate(self._channels)}

    def _index_of(self, key: str | bytes) -> int:
        encoded = key if isinstance(key, bytes) else key.encode(errors="replace")
        return crc32(encoded) % len(self._channels)
