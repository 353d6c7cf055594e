import asyncio
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.http.source import HttpSource
from tests.certificates import Authority
from tests.unit.agent.sources.recording_writer import RecordingWriter, running

pytestmark = pytest.mark.usefixtures("prompt_http_stop")

TABLE = {"type": "http", "channels": ["orders"], "listen": "127.0.0.1:0"}


def make_source(**settings: object) -> HttpSource:
    return HttpSource("web", HttpSourceConfig.model_validate({**TABLE, **settings}, strict=True))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Host": "localhost"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Host": "evil.example"}, 421),
        ({"Origin": "https://in.example", "Host": "in.example"}, 200),
        ({"Host": "any.example"}, 200),
    ],
)
async def test_post_of_a_page_of_another_site_stores_nothing(headers: Mapping[str, str], status: int) -> None:
    """A page that somebody reads must not fill the channels; other programs may call the source by any name."""
    made, channel_writer = make_source(http_hosts=["in.example"]), RecordingWriter()
    async with running(made, channel_writer):
        reader, writer = await asyncio.open_connection(made._listen.address.host, made._listen.address.port)
        sent = {"Host": "localhost", "Content-Length": "1", **headers}
        lines = ["POST / HTTP/1.1", *(f"{key}: {value}" for key, value in sent.items()), "", "a"]
        writer.write("\r\n".join(lines).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
        writer.close()
    assert channel_writer.bodies == [b"a"] * (status == 200)


def test_config_with_tls_may_be_reached(tmp_path: Path) -> None:
    """Files that are not valid are errors that name the setting and the file."""
    certificate, private_key = Authority().issue(tmp_path, "server")
    table = {**TABLE, "listen": "0.0.0.0:80", "tls": {"certificate": str(certificate), "private_key": str(private_key)}}
    HttpSourceConfig.model_validate(table, strict=True)
    private_key.chmod(0o644)
    with pytest.raises(ValidationError) as raised:
        HttpSourceConfig.model_validate(table, strict=True)
    [problem] = describe_problems(raised.value, HttpSourceConfig)
    assert re.search(r"tls\.private_key: .*server\.key.* run: chmod o-rwx", str(problem))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_post_over_tls_is_stored(tmp_path: Path) -> None:
    """To a client like curl."""
    authority = Authority()
    certificate, private_key = authority.issue(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    made = make_source(tls={"certificate": str(certificate), "private_key": str(private_key)})
    channel_writer = RecordingWriter()
    async with running(made, channel_writer):
        url = f"https://localhost:{made._listen.address.port}/"
        # Not with asyncio: uvloop forks by itself, which runs gRPC's fork handlers.
        command = ["curl", "-sS", "--cacert", str(tmp_path / "ca.pem"), "-d", "a=1", url]
        await asyncio.to_thread(lambda: subprocess.run(command, check=True))
    assert channel_writer.bodies == [b"a=1"]
