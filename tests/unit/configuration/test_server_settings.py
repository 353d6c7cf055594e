"""The table `server` of the configuration."""

from pathlib import Path

import pytest

from tests.unit.configuration.settings_file import load, problems_of


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (
            "inflight_bytes_max = 4096",
            "server.inflight_bytes_max: is 4096; it must not be below server.message_bytes_max, 67108864",
        ),
        (
            "message_bytes_max = 4096\ninflight_bytes_max = 8192\ninflight_bytes_per_connection_max = 8193",
            "server.inflight_bytes_per_connection_max: is 8193; it must not be above server.inflight_bytes_max, 8192",
        ),
        (
            'http_listen = "127.0.0.1:7070"',
            'server.http_listen: is "127.0.0.1:7070"; it must be another address than server.listen',
        ),
        ('data_dir = ""', 'server.data_dir: is ""; it must be the path of a file or directory'),
        ('data_dir = "a\\u0000b"', 'server.data_dir: is "a\\u0000b"; it must be the path of a file or directory'),
        ("data_dir = 3", "server.data_dir: is 3; it must be a path in quotes"),
        ("listen = 7070", "server.listen: is 7070; it must be text"),
        (
            'advertise = "mill"',
            'server.advertise: is "mill"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070',
        ),
        ('advertise = "m:0"', 'server.advertise: is "m:0"; it must be one that clients can connect to'),
        ('advertise = "[::]:1"', 'server.advertise: is "[::]:1"; it must be one that clients can connect to'),
    ],
)
def test_load_when_fields_do_not_fit_together_says_so(tmp_path: Path, server: str, problem: str) -> None:
    """Checks between fields name both fields."""
    assert problems_of(tmp_path, f"[server]\n{server}\n") == [problem]


def test_load_with_a_smaller_bound_in_all_reduces_the_default_per_connection(tmp_path: Path) -> None:
    """The default per connection never exceeds the total."""
    server = load(tmp_path, "[server]\nmessage_bytes_max = 8192\ninflight_bytes_max = 10000\n").server
    assert server.inflight_bytes_per_connection_max == 10_000


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "[::]:7070", "mill.example.com:7070", "192.168.0.1:0"])
@pytest.mark.parametrize("field", ["listen", "http_listen"])
def test_load_when_others_could_connect_asks_for_consent(tmp_path: Path, field: str, address: str) -> None:
    """Without TLS, or without identities, a server that listens on other addresses needs consent for each."""
    toml = f'[server]\n{field} = "{address}"\n'
    in_plain_text = (
        f'server.{field}: is "{address}", which other machines can reach in plain text; there must be a table '
        "server.tls, or it must be a loopback address, or server.allow_plaintext must be true"
    )
    anonymous = (
        f'server.{field}: is "{address}", where anyone on other machines may do everything; there must be a table '
        "auth, or it must be a loopback address, or server.allow_anonymous must be true"
    )
    assert problems_of(tmp_path, toml) == [in_plain_text, anonymous]
    assert problems_of(tmp_path, toml + "allow_plaintext = true\n") == [anonymous]
    assert problems_of(tmp_path, toml + "allow_anonymous = true\n") == [in_plain_text]
    assert load(tmp_path, toml + "allow_plaintext = true\nallow_anonymous = true\n").server.allow_plaintext is True


@pytest.mark.parametrize("address", ["[::1]:7070", "localhost:0", "127.0.0.1:0"])
def test_load_with_a_loopback_address_needs_no_consent(tmp_path: Path, address: str) -> None:
    """Plaintext is allowed within the machine."""
    assert load(tmp_path, f'[server]\nlisten = "{address}"\n').server.listen == address


def test_load_with_an_advertised_address_adds_its_host_to_those_of_http(tmp_path: Path) -> None:
    """What reaches gRPC by a name reaches HTTP by it, too."""
    server = load(tmp_path, '[server]\nadvertise = "Mill-1.example:7070"\nhttp_hosts = ["mill"]\n').server
    assert server.own_http_hosts == ["mill", "mill-1.example"]
    assert load(tmp_path, '[server]\nadvertise = "[fd00::1]:7070"\n').server.own_http_hosts == ["[fd00::1]"]


def test_load_with_port_0_twice_takes_two_free_ports(tmp_path: Path) -> None:
    """Each port 0 is a different free port."""
    server = load(tmp_path, '[server]\nlisten = "127.0.0.1:0"\nhttp_listen = "127.0.0.1:0"\n').server
    assert server.listen == server.http_listen
