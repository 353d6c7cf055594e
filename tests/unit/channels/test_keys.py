import base64
import os
import random
from pathlib import Path

import pytest

from millrace_server.channels.keys import KeyFileError, load_keys

KEY = bytes(range(100, 132))


def key_file(path: Path, content: bytes = KEY, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refusal_of(path: Path, key_id: str = "2026") -> str:
    """The error with which a file is refused; it must contain no part of a key."""
    with pytest.raises(KeyFileError) as refusal:
        load_keys({key_id: path})
    assert refusal.value.__cause__ is None
    return str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [
        KEY,
        KEY.hex().encode(),
        KEY.hex().upper().encode() + b"\n",
        KEY.hex().encode() + b" \r\n\n",
        base64.b64encode(KEY),
        base64.b64encode(KEY) + b"\n",
    ],
)
def test_load_keys_reads_each_form(tmp_path: Path, content: bytes) -> None:
    """A key may be raw, hexadecimal or in base64, with white space after the text."""
    assert load_keys({"2026": key_file(tmp_path / "key", content)}) == {"2026": KEY}


def test_load_keys_of_raw_bytes_strips_nothing(tmp_path: Path) -> None:
    """A raw key may end with bytes that are white space in text."""
    key = KEY[:-2] + b" \n"
    assert load_keys({"2026": key_file(tmp_path / "key", key)}) == {"2026": key}


def test_load_keys_reads_several(tmp_path: Path) -> None:
    """Each key is found by its id; without any there are none."""
    other = KEY[::-1]
    paths = {"old": key_file(tmp_path / "old"), "new": key_file(tmp_path / "new", other, mode=0o400)}
    assert load_keys(paths) == {"old": KEY, "new": other}
    assert load_keys({}) == {}


def test_load_keys_follows_a_link_to_a_file(tmp_path: Path) -> None:
    """Secrets are often mounted as links; the mode of the file itself counts."""
    link = tmp_path / "link"
    link.symlink_to(key_file(tmp_path / "key"))
    assert load_keys({"2026": link}) == {"2026": KEY}
    (tmp_path / "key").chmod(0o644)
    assert "has mode 0644" in refusal_of(link)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        KEY[:-1],
        KEY + b"\n",
        KEY.hex().encode()[:-1],
        KEY.hex().encode() + b"0",
        b" " + KEY.hex().encode(),
        KEY.hex().encode()[:-1] + b"g",
        base64.b64encode(KEY)[:-1],
        base64.b64encode(KEY[:-1]),
        base64.b64encode(KEY + b"0"),
        base64.b64encode(KEY)[:-2] + b"!=",
        KEY * 1000,
    ],
)
def test_load_keys_of_other_contents_refuses_without_telling_them(tmp_path: Path, content: bytes) -> None:
    """The message names the key and the file, and how to create a valid key, but shows nothing of the content."""
    path = key_file(tmp_path / "key", content)
    assert refusal_of(path) == (
        f"key '2026': {path} does not hold 32 bytes, 64 hexadecimal digits, or as much in base64; "
        "make a key with: openssl rand -hex 32 > FILE; chmod 600 FILE"
    )


@pytest.mark.parametrize("content", [bytes(32), b"0" * 64, base64.b64encode(bytes(32))])
def test_load_keys_of_zeros_refuses(tmp_path: Path, content: bytes) -> None:
    """A power cut may leave zeros in a file that was never synced."""
    assert "holds zeros only" in refusal_of(key_file(tmp_path / "key", content))


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o666])
def test_load_keys_of_a_file_that_others_may_use_refuses(tmp_path: Path, mode: int) -> None:
    """A key that others may read or write is not secret."""
    assert f"has mode {mode:04o}; only its owner" in refusal_of(key_file(tmp_path / "key", mode=mode))


def test_load_keys_of_another_users_file_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a file may read and change it."""
    path = key_file(tmp_path / "key")
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    assert "belongs to another user" in refusal_of(path)


def test_load_keys_of_something_else_than_a_file_refuses(tmp_path: Path) -> None:
    """A directory contains no key, and a pipe is not waited for."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        assert f"{path} is not a regular file" in refusal_of(path)


def test_load_keys_of_a_missing_file_reports_it(tmp_path: Path) -> None:
    """The sentence has the operating system's reason, and the id without its control characters."""
    assert refusal_of(tmp_path / "none", "a\nb").startswith(
        rf"key 'a\nb': {tmp_path / 'none'} cannot be read: No such file or directory; "
    )


def test_load_keys_of_random_bytes_returns_a_key_or_refuses(tmp_path: Path) -> None:
    """Any content results in a key of 32 bytes or an error message."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown where the test fails
    source = random.Random(seed)
    path = key_file(tmp_path / "key")
    for _ in range(500):
        path.write_bytes(source.randbytes(source.choice((0, 1, 31, 32, 33, 43, 44, 45, 64, 65, 88))))
        try:
            (key,) = load_keys({"2026": path}).values()
        except KeyFileError:
            continue
        assert len(key) == 32
