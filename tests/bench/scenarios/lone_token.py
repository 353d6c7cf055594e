"""What it costs a lone call that the server checks who makes it."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace_server.access.tokens import make_token
from tests.bench.calls import Method, call_many, connect
from tests.bench.findings import Line, Section
from tests.bench.payloads import MEMORY_CHANNEL, append_columns
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds

_CHANNEL_TOML = f'[channels.{MEMORY_CHANNEL}]\ntype = "memory"\ncapacity = 10000000\n'
_AUTH_TOML = """
auth.tokens_file = "{tokens_file}"
roles.all.allow = ["append:*"]
identities.one.roles = ["all"]
"""
_SHARE_MAX = 1.02
_WARMING_CALLS = 500
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class LoneTokenPlan:
    """The extent of the measurements."""

    rounds: int = 11
    calls: int = 4_000

    @property
    def step_count(self) -> int:
        """The number of rounds."""
        return self.rounds


QUICK_LONE_TOKEN_PLAN = LoneTokenPlan(rounds=2, calls=500)


async def measure_lone_token(scratch: Path, plan: LoneTokenPlan, on_step: Callable[[], None]) -> list[Section]:
    """Calls two servers in turns, one call each: what else the machine does in a second would cost either the same."""
    tokens_file = scratch / "tokens"
    metadata = (("authorization", f"Bearer {make_token(tokens_file, 'one')}"),)
    checking = _started(scratch / "checking", _AUTH_TOML.format(tokens_file=tokens_file) + _CHANNEL_TOML)
    open_to_all = _started(scratch / "open", _CHANNEL_TOML)
    request = append_columns(1, MEMORY_CHANNEL)
    try:
        async with connect(checking.grpc) as guarded, connect(open_to_all.grpc) as unguarded:
            name = CHANNELS.format("Append")
            methods = Method(guarded, name, request, metadata), Method(unguarded, name, request)
            processes = checking.process.pid, open_to_all.process.pid
            await _times(methods, _WARMING_CALLS)
            rounds = []
            for _ in range(plan.rounds):
                used_before = [cpu_seconds(pid) for pid in processes]
                seconds = await _times(methods, plan.calls)
                used = [cpu_seconds(pid) - before for pid, before in zip(processes, used_before, strict=True)]
                rounds.append([*(one / plan.calls * _MICROSECONDS for one in (*seconds, *used))])
                on_step()
    finally:
        checking.kill()
        open_to_all.kill()
    checked, unchecked, checked_used, unchecked_used = zip(*rounds, strict=True)
    lines = [
        Line(what="a call with a token", value=statistics.median(checked), unit="us"),
        Line(what="a call without one, where none is asked for", value=statistics.median(unchecked), unit="us"),
        Line(what="of that", value=_share(checked, unchecked), unit="", most=_SHARE_MAX),
        Line(what="the server's processor time with a token", value=statistics.median(checked_used), unit="us"),
        Line(what="of that without one", value=_share(checked_used, unchecked_used), unit="", most=_SHARE_MAX),
    ]
    return [Section("Append of one event to a channel in memory, one caller", lines)]


def _share(ours: tuple[float, ...], others: tuple[float, ...]) -> float:
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


async def _times(methods: tuple[Method, Method], calls: int) -> list[float]:
    """Returns how many seconds the calls of each method took."""
    seconds = [0.0, 0.0]
    for _ in range(calls):
        for index, method in enumerate(methods):
            started = time.perf_counter()
            await call_many(method, 1, 1)
            seconds[index] += time.perf_counter() - started
    return seconds


def _started(scratch: Path, config_toml: str) -> Millraced:
    scratch.mkdir()
    (scratch / "millrace.toml").write_text(config_toml)
    arguments = ("--config", str(scratch / "millrace.toml"), "--data-dir", str(scratch / "data"))
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    return Millraced((*arguments, *free_ports), scratch / "data", python=sys.executable)
