import gzip
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from millrace_server.agent.sources.spooldir import chunks as chunks_module
from millrace_server.agent.sources.spooldir.chunks import Chunk, ChunkLimits
from millrace_server.agent.sources.spooldir.config import AnyFormat
from millrace_server.agent.sources.spooldir.content import BadFileError, Content
from millrace_server.agent.sources.spooldir.source import open_chunks
from millrace_server.agent.sources.stored_ranges import StoredRanges
from tests.spool import opened, put

_FORMATS: TypeAdapter[AnyFormat] = TypeAdapter(AnyFormat)

Ranges = list[list[tuple[int, int]]]


def chunks_of(
    path: Path,
    stored: Ranges | None = None,
    events_max: int = 1_000,
    body_bytes_max: int = 1 << 30,
    **file_format: Any,
) -> list[Chunk]:
    """All chunks of a file of which channels have stored these ranges."""
    file = opened(path)
    try:
        chosen = _FORMATS.validate_python({"type": "lines", **file_format}, strict=True)
        limits = ChunkLimits(events_max, body_bytes_max)
        reader = open_chunks(Content(file), chosen, StoredRanges(stored or [[]]), limits)
        return list(reader)
    finally:
        file.close()


def bodies_of(chunks: list[Chunk]) -> list[bytes]:
    return [body for chunk in chunks for body in chunk.bodies]


def check_cover(chunks: list[Chunk], start: int, end: int) -> None:
    """Asserts that the chunks cover all numbers of a range without gaps."""
    assert [chunk.first for chunk in chunks[:1]] == [start]
    assert all(one.last + 1 == other.first for one, other in pairwise(chunks))
    assert chunks[-1].last + 1 == end


def test_chunks_of_lines_cover_all_bytes(tmp_path: Path) -> None:
    """The numbers count bytes, including line ends; the last line need not have one."""
    text = b"one\r\n\ntwo\nthree"
    found = chunks_of(put(tmp_path, "a", text), events_max=2)
    assert bodies_of(found) == [b"one", b"", b"two", b"three"]
    assert [list(chunk.offsets) for chunk in found] == [[0, 5], [6], [10]]
    check_cover(found, 0, len(text))


def test_chunks_of_an_empty_file_are_none(tmp_path: Path) -> None:
    """There is nothing to store, and the file is done."""
    assert chunks_of(put(tmp_path, "a")) == []


def test_chunks_of_lines_keep_the_limits(tmp_path: Path) -> None:
    """No chunk exceeds the limits of events and bytes, except for a single large event."""
    choice = random.Random(11)
    lines = [b"x" * choice.choice([0, 1, 10, 100, 3_000]) for _ in range(5_000)]
    text = b"".join(line + b"\n" for line in lines)
    found = chunks_of(put(tmp_path, "a", text), events_max=5, body_bytes_max=2_000)
    assert bodies_of(found) == lines
    check_cover(found, 0, len(text))
    assert max(len(chunk.bodies) for chunk in found) == 5
    assert all(len(chunk.bodies) == 1 or sum(map(len, chunk.bodies)) <= 2_000 for chunk in found)


def test_chunks_of_lines_that_are_left_out_cover_them_too(tmp_path: Path) -> None:
    """A file that has only too long lines is completed too."""
    text = (b"x" * 100 + b"\n") * 3
    found = chunks_of(put(tmp_path, "a", text), line_bytes_max=50, long_lines="drop")
    assert bodies_of(found) == []
    check_cover(found, 0, len(text))


def test_chunks_of_a_line_that_is_not_in_its_charset_report_where(tmp_path: Path) -> None:
    """The lines before it are stored; the file is bad."""
    path = put(tmp_path, "a", b"good\n\xff\xfe\ngood\n")
    assert bodies_of(chunks_of(path)) == [b"good", b"\xff\xfe", b"good"]
    file = opened(path)
    chosen = _FORMATS.validate_python({"type": "lines", "decode_errors": "fail"}, strict=True)
    reader = open_chunks(Content(file), chosen, StoredRanges([[]]), ChunkLimits(10, 1 << 20))
    chunk = next(reader)
    assert chunk is not None
    assert list(chunk.bodies) == [b"good"]
    with pytest.raises(BadFileError, match="the line at byte 5 is not in utf-8"):
        next(reader)
    file.close()


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("charset", "mark"), [("utf-8", b""), ("utf-8-sig", b"\xef\xbb\xbf"), ("utf-16", b"\xfe\xff"), ("utf-32", b"")]
)
def test_chunks_from_any_stored_position_on_are_the_rest(
    tmp_path: Path, suffix: str, charset: str, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is what the channels have not stored; the byte order mark is read in any case."""
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 64)
    codec = {"utf-16": "utf-16-be", "utf-32": "utf-32-le"}.get(charset, "utf-8")
    lines = [f"zeile {number} \u20ac{'x' * (number % 40)}" for number in range(60)]
    text = mark + "".join(f"{line}\n" for line in lines).encode(codec)
    path = put(tmp_path, f"a{suffix}", gzip.compress(text) if suffix else text)
    options: dict[str, Any] = {
        "charset": charset,
        "line_bytes_max": 100,
        "long_lines": "drop",
        "multiline": {"pattern": "[05] ", "negate": True, "role": "continues"},
    }
    whole = chunks_of(path, events_max=3, **options)
    assert len(whole) > 5
    check_cover(whole, 0, len(text))
    for index, chunk in enumerate(whole):
        rest = chunks_of(path, [[(0, chunk.last)]], events_max=4, **options)
        assert bodies_of(rest) == bodies_of(whole[index + 1 :])
        if rest:
            check_cover(rest, chunk.last + 1, len(text))


def test_chunks_for_channels_that_differ_end_where_their_ranges_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between the commits of two channels, no batch is partly new for any of them.

    Lines that are left out belong to the event before them, whose end thereby depends on what was read together.
    """
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 256)
    for seed in range(60):
        choice = random.Random(seed)
        lines = [b"x" * choice.choice([0, 5, 20, 200]) for _ in range(choice.randint(1, 80))]
        text = b"".join(line + b"\n" for line in lines)
        path = put(tmp_path, f"file-{seed}", text)
        options: dict[str, Any] = {"line_bytes_max": 100, "long_lines": choice.choice(["drop", "split"])}
        first_run = chunks_of(path, events_max=choice.randint(1, 5), **options)
        behind, ahead = sorted(choice.choices(range(len(first_run)), k=2))
        stored = [[(0, first_run[behind].last)], [(0, first_run[ahead].last)]]
        second_run = chunks_of(path, stored, events_max=choice.randint(1, 5), **options)
        assert bodies_of(second_run) == bodies_of(first_run[behind + 1 :]), f"seed {seed}"
        for chunk in second_run:
            assert chunk.last <= stored[1][0][1] or chunk.first > stored[1][0][1], f"seed {seed}"


def test_chunks_after_another_idea_of_a_line_call_the_file_bad(tmp_path: Path) -> None:
    """The missing events can no longer be cut out of the file; nothing is stored twice or omitted."""
    path = put(tmp_path, "a", b"one\ntwo\nthree\n")
    multiline = {"pattern": "one", "role": "begins"}
    with pytest.raises(BadFileError, match="its first 8 bytes"):
        chunks_of(path, [[], [(0, 7)]], multiline=multiline)


def test_chunks_of_a_blob_are_one_whole(tmp_path: Path) -> None:
    """A file is one event, even if it is empty, and is completed once it is stored."""
    path = put(tmp_path, "a", b"one\ntwo\n")
    [chunk] = chunks_of(path, type="blob")
    assert chunk == Chunk([b"one\ntwo\n"], [0], 0, 0)
    assert chunks_of(path, [[(0, 0)]], type="blob") == []
    assert bodies_of(chunks_of(put(tmp_path, "b"), type="blob")) == [b""]


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_chunks_of_a_blob_that_is_too_large_call_it_bad(tmp_path: Path, name: str) -> None:
    """The uncompressed size counts."""
    path = put(tmp_path, name, gzip.compress(bytes(1_001)) if name == "a.gz" else bytes(1_001))
    with pytest.raises(BadFileError, match="it has more than 1000 bytes"):
        chunks_of(path, type="blob", file_bytes_max=1_000)
    assert bodies_of(chunks_of(path, type="blob", file_bytes_max=1_001)) == [bytes(1_001)]
