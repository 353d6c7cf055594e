from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_server.configuration.settings import check_settings
from millrace_server.embedded import EmbeddedAgent

CHANNELS = {"orders": {"type": "memory"}, "other": {"type": "memory"}}


def problems_of(**tables: Any) -> list[str]:
    try:
        check_settings({"channels": CHANNELS, **tables}, "test")
    except SettingsError as error:
        return list(map(str, error.problems))
    return []


def web(listen: object, **settings: Any) -> dict[str, Any]:
    return {"type": "http", "channels": ["orders"], "listen": listen, **settings}


def syslog(*listen: str, **settings: Any) -> dict[str, Any]:
    return {"type": "syslog", "channels": ["orders"], "listen": list(listen), **settings}


@pytest.mark.parametrize(
    ("tables", "place", "was", "other"),
    [
        ({"sources": {"web": web("127.0.0.1:7070")}}, "sources.web.listen", "127.0.0.1:7070", "server.listen"),
        ({"sources": {"web": web("localhost:7071")}}, "sources.web.listen", "localhost:7071", "server.http_listen"),
        (
            {"server": {"listen": "[::1]:80"}, "sources": {"web": web("[::1]:80")}},
            "sources.web.listen",
            "[::1]:80",
            "server.listen",
        ),
        (
            {"sources": {"a": web("127.0.0.1:80"), "b.c": web("0.0.0.0:80", allow_plaintext=True)}},
            'sources."b.c".listen',
            "0.0.0.0:80",
            "sources.a.listen",
        ),
        (
            {"sources": {"a": web("127.0.0.1:80"), "b": syslog("udp://127.0.0.1:80", "tcp://127.0.0.1:80")}},
            "sources.b.listen[1]",
            "tcp://127.0.0.1:80",
            "sources.a.listen",
        ),
        (
            {"sources": {"a": syslog("udp://127.0.0.1:514"), "b": syslog("udp://127.0.0.1:514")}},
            "sources.b.listen[0]",
            "udp://127.0.0.1:514",
            "sources.a.listen[0]",
        ),
    ],
)
def test_check_of_two_parts_that_listen_at_one_address_is_refused(
    tables: dict[str, Any], place: str, was: str, other: str
) -> None:
    """The second one could not start, which would be noticed only at run time."""
    assert problems_of(**tables) == [f'{place}: is "{was}", where {other} listens already; it must be another address']


@pytest.mark.parametrize(
    "sources",
    [
        {"a": web("127.0.0.1:0"), "b": web("127.0.0.1:0")},
        {"a": web("127.0.0.1:80"), "b": web("127.0.0.2:80")},
        {"a": syslog("udp://127.0.0.1:80"), "b": web("127.0.0.1:80")},
        {"a": syslog("udp://127.0.0.1:80", "tcp://127.0.0.1:80")},
    ],
)
def test_check_of_parts_that_listen_apart_is_well(sources: dict[str, Any]) -> None:
    """Another port, host or transport suffices; port 0 is a different one each time."""
    assert problems_of(sources=sources) == []


def test_check_when_the_addresses_make_no_sense_says_only_that() -> None:
    """A value that is not an address is not compared with the other addresses."""
    odd = {"type": ["http"], "channels": ["orders"], "listen": "127.0.0.1:80"}
    problems = problems_of(server=3, sources={"a": web("nowhere"), "b": web(["127.0.0.1:80"]), "c": 5, "d": odd})
    assert len(problems) == 5
    assert not any("listens already" in problem for problem in problems)


def sink(endpoint: str, target: str = "orders") -> dict[str, Any]:
    return {"type": "millrace", "channel": "orders", "endpoints": ["far:7070", endpoint], "target_channel": target}


@pytest.mark.parametrize("endpoint", ["127.0.0.1:7070", "localhost:7070"])
def test_check_of_a_sink_that_forwards_into_its_own_channel_is_refused(endpoint: str) -> None:
    """Its events would circulate without end."""
    [problem] = problems_of(sinks={"out": sink(endpoint)})
    assert problem == (
        f'sinks.out.endpoints[1]: is "{endpoint}", which is this server, whose channel "orders" the sink both '
        "reads and would fill; it must be another server, or target_channel another channel"
    )


def test_check_of_a_sink_that_forwards_elsewhere_is_well() -> None:
    """The target is another server, or another channel of this one."""
    assert problems_of(sinks={"a": sink("127.0.0.1:7072"), "b": sink("127.0.0.1:7070", "other")}) == []


def flume(listen: str, channel: str = "orders") -> dict[str, Any]:
    return {"type": "avro", "channels": [channel], "listen": listen}


def test_check_of_an_avro_sink_that_sends_to_an_own_source_is_refused() -> None:
    """A source that fills another channel may be among its receivers."""
    out = {"type": "avro", "channel": "orders", "endpoints": ["far:4141", "localhost:4141"]}
    [problem] = problems_of(sources={"flume": flume("127.0.0.1:4141")}, sinks={"out": out})
    assert problem == (
        'sinks.out.endpoints[1]: is "localhost:4141", which is this server, whose channel "orders" the sink both '
        "reads and would fill; it must be another server"
    )
    assert problems_of(sources={"flume": flume("127.0.0.1:4141", "other")}, sinks={"out": out}) == []


def test_embedded_agent_listens_nowhere_and_so_has_no_conflicts() -> None:
    """Its sources may use the server's addresses."""
    EmbeddedAgent({"channels": CHANNELS, "sources": {"web": web("127.0.0.1:7070")}})


@pytest.mark.parametrize("missing", [None, ModuleNotFoundError("opentelemetry")])
def test_tracing_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: ModuleNotFoundError | None
) -> None:
    """Found when the file is checked, not once the server runs."""

    def find_spec(_name: str) -> None:
        if missing is not None:
            raise missing

    assert problems_of(server={"tracing": {}}) == []
    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    [problem] = problems_of(server={"tracing": {}})
    assert problem.endswith("install it with: pip install 'millrace-server[opentelemetry]'")
