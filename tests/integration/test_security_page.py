"""The commands, programs and configurations of docs/security.md, executed."""

import re
from pathlib import Path

import pytest

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.millraced import Millraced, run_millraced
from tests.scripts import run_script
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"
DOCUMENTED_ADDRESS = "localhost:7070"


def block(kind: str) -> str:
    """The page's only block of a kind."""
    [found] = blocks_of(PAGE, kind)
    return found


def bash(commands: str, folder: Path, server: Millraced | None = None) -> str:
    """Runs a block in a folder; what it says of the server's address and of pauses is replaced."""
    address = DOCUMENTED_ADDRESS if server is None else server.grpc.replace("127.0.0.1", "localhost")
    script = commands.replace(DOCUMENTED_ADDRESS, address).replace("sleep 2", "true")
    return run_script(script, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's first commands have made certificates and tokens."""
    made = tmp_path_factory.mktemp("security")
    bash(block("make"), made)
    return made


def test_page_from_the_first_certificate_to_the_last_rotation(start_millraced: StartMillraced, folder: Path) -> None:
    """Each block works after the one before it, and what was rotated out is refused."""
    config = re.sub('= "(?=tls/|tokens)', f'= "{folder}/', block("server"))
    server = start_millraced(config)
    program = block("python")
    assert "web.access" in bash(block("shell"), folder, server)
    assert "GET / HTTP/1.1" in bash(f"python <<'END'\n{program}END\n", folder, server)
    former = (folder / "edge-1.token").read_text()
    bash(block("token"), folder, server)
    bash(block("authority"), folder, server)
    for event in ("tokens reloaded", "TLS files reloaded"):
        server.wait_for(event)
    tls = millrace.Tls(ca=folder / "tls" / "ca.pem")
    with millrace.connect(server.grpc, tls=tls, token_file=folder / "edge-1.token") as edge:
        assert edge.channel("web.access").append([b"two"]).last_sequence == 2
        with pytest.raises(millrace.ForbiddenError):
            edge.admin.purge_channel("web.access")
    with millrace.connect(server.grpc, tls=tls, token=former) as gone:
        wait_until(lambda: _is_refused(gone))


def _is_refused(client: millrace.Client) -> bool:
    """Whether the server has read that the client's token is gone, and not only what was changed before."""
    try:
        client.admin.list_channels()
    except millrace.UnauthenticatedError:
        return True
    return False


def test_configurations_of_the_page_are_good(folder: Path) -> None:
    """The first one alone, and with each of the parts that the page adds to it."""
    serve, *_ = block("serve").splitlines()
    parts = blocks_of(PAGE, "part")
    assert len(parts) == 4
    for part in ["", *parts]:
        config = part.replace(f"{MOUNTED}/ca.crt", f"{folder}/tls/ca.pem").replace(
            f"{MOUNTED}/token", f"{folder}/me.token"
        )
        (folder / "millrace.toml").write_text(block("server") + config)
        assert run_millraced(*serve.split()[1:], cwd=folder).returncode == 0
