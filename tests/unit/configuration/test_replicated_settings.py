"""Channels of type replicated, and the engine that they share."""

from pathlib import Path

import pytest

from tests.unit.configuration.settings_file import load, problems_of

_ENGINE = 'type = "jetstream", servers = ["nats://n1:4222", "tls://n2:4222"]'
_CHANNEL = '[channels.orders]\ntype = "replicated"\n'


def test_load_of_a_replicated_channel_has_the_engine_and_its_defaults(tmp_path: Path) -> None:
    """Space for takes and checkpoints is a share of the stream."""
    [channel] = load(tmp_path, f'{_CHANNEL}engine = {{ {_ENGINE}, stream_bytes_max = "50MB" }}\n').channels.values()
    assert channel.replicated is not None
    assert channel.log is channel.replicated
    assert channel.on_disk is None
    assert channel.replicated.reserved_bytes == 5_000_000
    engine = channel.replicated.engine
    assert (engine.replicas, engine.stream_bytes_max, engine.renew_seconds) == (3, 50_000_000, 3.0)
    assert channel.capacity == 1_000_000


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            f'engine = {{ {_ENGINE} }}\ndata_dirs = ["here"]',
            'data_dirs: is only for type "file" or "spillable"',
        ),
        ('engine = { type = "kafka", servers = ["nats://n"] }', 'engine.type: is "kafka"; it must be "jetstream"'),
        ('engine = { type = "jetstream", servers = [] }', "engine.servers: has no value; it must have at least 1"),
        (
            'engine = { type = "jetstream", servers = ["n1:4222"] }',
            'engine.servers[0]: is "n1:4222"; it must be a URL such as nats://n1.example:4222',
        ),
        (
            'engine = { type = "jetstream", servers = ["nats://n:70000"] }',
            'engine.servers[0]: is "nats://n:70000"; it must be a URL such as nats://n1.example:4222',
        ),
        (
            'engine = { type = "jetstream", servers = ["nats://me:secret@n"] }',
            "engine.servers[0]: has a user name or a password, which a URL must not have",
        ),
        (
            'engine = { type = "jetstream", servers = ["nats://n/x"] }',
            'engine.servers[0]: is "nats://n/x"; it must end after the host and the port',
        ),
        (
            'engine = { type = "jetstream", servers = ["nats://n", "nats://n"] }',
            'engine.servers: has "nats://n" more than once',
        ),
        (f"engine = {{ {_ENGINE}, replicas = 2 }}", "engine.replicas: is 2; it must be 1 or 3 or 5"),
        (
            f"engine = {{ {_ENGINE}, lease_seconds = 0.5 }}",
            "engine.lease_seconds: is 0.5; it must be a number from 1 to 600",
        ),
        (
            f'engine = {{ {_ENGINE}, stream_bytes_max = "10MB" }}\nmin_free_bytes = "10MB"',
            "min_free_bytes: is 10000000; it must be below engine.stream_bytes_max, 10000000",
        ),
    ],
)
def test_load_of_a_replicated_channel_that_cannot_be_says_why(tmp_path: Path, settings: str, problem: str) -> None:
    """Each problem names the setting, what it is and what it must be; a password is not shown."""
    assert problems_of(tmp_path, f"{_CHANNEL}{settings}\n") == [f"channels.orders.{problem}"]


def test_load_without_the_library_of_the_engine_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is an extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    [problem] = problems_of(tmp_path, f"{_CHANNEL}engine = {{ {_ENGINE} }}\n")
    assert problem.endswith("install it with: pip install 'millrace-server[jetstream]'")


def test_load_with_an_engine_of_the_server_gives_it_to_channels_without_one(tmp_path: Path) -> None:
    """A channel's own engine counts before it."""
    own = '[channels.own]\ntype = "replicated"\nengine = { type = "jetstream", servers = ["nats://other"] }\n'
    channels = load(tmp_path, f"[server]\nengine = {{ {_ENGINE} }}\n{_CHANNEL}{own}").channels
    servers = {name: channel.replicated.engine.servers for name, channel in channels.items() if channel.replicated}
    assert servers == {"orders": ["nats://n1:4222", "tls://n2:4222"], "own": ["nats://other"]}


def test_load_without_any_engine_says_where_it_belongs(tmp_path: Path) -> None:
    """Each replicated channel is named, together with the table that all of them share."""
    assert problems_of(tmp_path, f'{_CHANNEL}capacity = "x"\n') == [
        "channels.orders: is replicated, but has no engine; add a table server.engine",
        'channels.orders.capacity: is "x"; it must be a whole number from 1 to 1_000_000_000, or text such as "1M"',
    ]


def test_load_with_a_wrong_engine_of_the_server_reports_it_once(tmp_path: Path) -> None:
    """Not at each channel again."""
    assert problems_of(tmp_path, f'[server]\nengine = {{ {_ENGINE}, replicas = 2 }}\n{_CHANNEL}capacity = "x"\n') == [
        "server.engine.replicas: is 2; it must be 1 or 3 or 5",
        'channels.orders.capacity: is "x"; it must be a whole number from 1 to 1_000_000_000, or text such as "1M"',
    ]


_EVERYWHERE = '[server]\nlisten = "0.0.0.0:7070"\nallow_plaintext = true\nallow_anonymous = true\n'


def test_load_where_clients_could_not_be_sent_to_this_server_asks_for_its_address(tmp_path: Path) -> None:
    """Without shared channels nobody is sent."""
    channel = f"{_CHANNEL}engine = {{ {_ENGINE} }}\n"
    [problem] = problems_of(tmp_path, f"{_EVERYWHERE}{channel}")
    assert problem.startswith("server.advertise: is missing; it must be the address of this server")
    assert problem.endswith('and server.listen is "0.0.0.0:7070"')
    assert load(tmp_path, f'{_EVERYWHERE}advertise = "mill:7070"\n{channel}').channels
    assert load(tmp_path, _EVERYWHERE).channels == {}
