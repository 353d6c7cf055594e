"""The tokens file."""

import errno
import os
import re
from pathlib import Path

import pytest

from millrace_server.access.tokens import TokensFile, hash_of, make_token, read_tokens

HASH = "0" * 64


def test_make_adds_a_line_to_what_there_is(tmp_path: Path) -> None:
    """Comments, other tokens and a last line without its end stay as they were."""
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"# ours\n\nold:sha256:{HASH}")
    token = make_token(path, "new")
    assert path.read_text() == f"# ours\n\nold:sha256:{HASH}\nnew:sha256:{hash_of(token)}\n"
    tokens = TokensFile(path)
    assert tokens.name_of(hash_of(token)) == "new"
    assert tokens.name_of(hash_of(token + "x")) is None
    assert tokens.name_of("") is None


def test_make_on_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would refuse a file with a part of a line at its next start."""
    path = tmp_path / "tokens"
    make_token(path, "old")
    before = path.read_text()

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        make_token(path, "new")
    assert path.read_text() == before


def test_refresh_takes_what_changed(tmp_path: Path) -> None:
    """Tokens that were removed are refused from then on; a file that is gone, broken or a pipe changes nothing."""
    path = tmp_path / "tokens"
    token = make_token(path, "a")
    tokens = TokensFile(path)
    assert not tokens.refresh()
    path.unlink()
    assert not tokens.refresh()
    os.mkfifo(path)
    assert not tokens.refresh()
    assert tokens.name_of(hash_of(token)) == "a"
    path.unlink()
    path.touch(0o600)
    path.write_text("a:sha256:0\n")
    assert not tokens.refresh()
    assert tokens.name_of(hash_of(token)) == "a"
    path.write_text("")
    assert tokens.refresh()
    assert tokens.name_of(hash_of(token)) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a", "line 1 is not NAME:sha256:HEX"),
        (f"\n:sha256:{HASH}".encode(), "line 2 is not NAME:sha256:HEX: a name must have 1 to 255"),
        (f"a b:sha256:{HASH}".encode(), "line 1 is not NAME:sha256:HEX: a name must have"),
        (f"a:md5:{HASH}".encode(), "line 1 is not NAME:sha256:HEX, with 64 hexadecimal digits"),
        (f"a:sha256:{HASH.replace('0', 'A')}".encode(), "line 1 is not NAME:sha256:HEX, with 64 hexadecimal"),
        (f"a:sha256:{HASH}\nb:sha256:{HASH}".encode(), "line 2 gives the token of a to b"),
        (b"\xff", "which is not UTF-8"),
    ],
)
def test_read_of_what_is_no_tokens_file_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    """The sentence names the file and the line, and never a hash."""
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(problem)) as refused:
        read_tokens(path)
    assert str(path) in str(refused.value)
    assert HASH not in str(refused.value)
