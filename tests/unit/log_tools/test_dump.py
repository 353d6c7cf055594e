import asyncio
import base64
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace_server.channels.config import EncryptionConfig
from millrace_server.channels.stamps import Stamp
from millrace_server.log_tools.dump import Document, DumpStart, dump, record_line
from millrace_server.log_tools.layout import UsageError
from millrace_server.log_tools.view import open_view
from millrace_server.wal.payload_codec import PayloadCodec
from tests.channel_events import append
from tests.unit.log_tools.kept_channels import NAME, flip, layout_of, make_channel, open_channel, positions, segments


def dumped(
    home: Path, start: str | None = None, codec: PayloadCodec | None = None, *, bodies: bool = False
) -> list[Document]:
    with open_view(layout_of(home), is_live=False) as view:
        first = DumpStart.parse(start) if start else None
        return list(dump(view, codec or PayloadCodec(), first, shows_bodies=bodies))


def test_dump_of_a_good_log_shows_each_record_in_order(home: Path) -> None:
    """Each line has the record's position, kind and content."""
    documents = dumped(home)
    assert [document["write_number"] for document in documents] == list(range(1, len(documents) + 1))
    state, put, commit, _put, stamped = documents[:5]
    assert (state["segment"], state["position"], state["kind"]) == (1, 64, "STATE")
    assert put["message"] == {"count": 10, "body_bytes": 140, "header_keys": []}
    assert commit["message"]["put_counts"] == [10]
    committed = datetime.fromisoformat(commit["message"]["commit_time"])
    assert timedelta() <= datetime.now(UTC) - committed < timedelta(days=1)
    assert documents[-1]["kind"] == "MARK"
    assert record_line(put) == (
        f"1:{put['position']}  PUT  number {put['write_number']}, synced up to {put['synced_position']}, "
        f"{put['payload_bytes']} bytes  count=10 body_bytes=140 header_keys=[]"
    )
    assert "stamp={producer_id='producer' last=9}" in record_line(stamped)


def test_dump_with_bodies_shows_events(home: Path) -> None:
    """Bodies are in base64; by default events are only counted."""
    event = dumped(home, bodies=True)[1]["message"]["events"][0]
    assert event == {"headers": {}, "body": base64.b64encode(b"0 of the first").decode()}


def test_dump_of_appends_that_share_a_record_shows_the_stamps_of_all(tmp_path: Path) -> None:
    """As JSON, and in one line, like all that a record says."""

    async def share_a_record() -> None:
        async with open_channel(tmp_path) as channel:
            # The first one begins a segment; those that wait behind it share a record.
            await asyncio.gather(*[append(channel, b"x", stamp=Stamp(who, 5, 5)) for who in "abcd"])

    asyncio.run(share_a_record())
    commit = next(one for one in dumped(tmp_path / NAME) if "more_stamps" in one.get("message", {}))
    stamps = [{"producer_id": who, "first": 5, "last": 5} for who in "bcd"]
    assert json.loads(json.dumps(commit))["message"]["more_stamps"] == stamps[1:]
    assert commit["message"]["stamp"] == stamps[0]
    assert "more_stamps=[{producer_id='c' first=5 last=5} {producer_id='d' first=5 last=5}]" in record_line(commit)


def test_dump_from_a_place_begins_there(home: Path) -> None:
    """The dump begins with the record at the position, or with the next valid one."""
    third = positions(segments(home)[1])[2]
    documents = dumped(home, f"2:{third}")
    assert (documents[0]["segment"], documents[0]["position"]) == (2, third)
    between = dumped(home, f"2:{third - 1}")
    assert [document["position"] for document in between[:2]] == [third - 1, third]
    assert "damage" in between[0]
    assert dumped(home, "2")[0]["position"] == 64


@pytest.mark.parametrize("text", ["", "x", "1:", "1:x", "-1", "1:2:3", "99"])
def test_dump_from_a_place_that_is_none_is_refused(home: Path, text: str) -> None:
    """The sentence says how a position is written, or that there is no such segment."""
    with pytest.raises(UsageError, match="--from: "):
        dumped(home, text or ":")


def test_dump_of_a_damaged_log_goes_on_behind_the_damage(home: Path) -> None:
    """Each valid record is shown, also after damage."""
    good = dumped(home)
    lost = positions(segments(home)[0])[3]
    flip(segments(home)[0], lost + 5)
    documents = dumped(home)
    [damage] = [document for document in documents if "kind" not in document]
    assert (damage["segment"], damage["position"]) == (1, lost)
    assert [document for document in documents if "kind" in document] == [
        document for document in good if (document["segment"], document["position"]) != (1, lost)
    ]
    assert record_line(damage).startswith(f"1:{lost}  DAMAGED  there is no valid record in ")


def test_dump_of_a_damaged_end_says_how_much_cannot_be_read(home: Path) -> None:
    """If no valid record follows in the segment, the dump continues with the next one."""
    last = positions(segments(home)[0])[-1]
    flip(segments(home)[0], last)
    documents = dumped(home)
    index = next(index for index, document in enumerate(documents) if "damage" in document)
    assert documents[index]["position"] == last
    assert documents[index + 1]["segment"] == 2


def test_dump_of_a_rotten_end_leaves_out_what_was_set_aside(tmp_path: Path) -> None:
    """Zeros after the last record are not damage."""
    # One segment, since where the log rotates depends on which commits shared a write.
    home = make_channel(tmp_path, segment_bytes_max=1 << 20)
    [segment] = segments(home)
    flip(segment, positions(segment)[1])
    assert sum("damage" in document for document in dumped(home)) == 1


def test_dump_with_a_segment_missing_says_so(home: Path) -> None:
    """A script must notice the gap."""
    segments(home)[1].unlink()
    [damage] = [document for document in dumped(home) if "damage" in document]
    assert damage == {"segment": 2, "position": 0, "damage": "the segment is missing"}


def test_dump_without_the_key_shows_what_is_not_encrypted(tmp_path: Path) -> None:
    """Places, kinds and lengths; and which key the rest needs; so with another key under its id."""
    file = tmp_path / "key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    home = make_channel(tmp_path, encryption=EncryptionConfig(keys={"2026": file}, active_key="2026"))
    put = dumped(home)[1]
    assert (put["kind"], put["flags"], put["key_id"]) == ("PUT", ["ENCRYPTED"], "2026")
    assert "message" not in put
    assert record_line(put).endswith("encrypted 2026  (the encryption key '2026' is needed, and was not given)")
    wrong = dumped(home, codec=PayloadCodec(keys={"2026": os.urandom(32)}))[1]
    assert "damage" not in wrong
    assert "(the encryption key '2026' is needed, and the one given is most likely another" in record_line(wrong)
    right = dumped(home, codec=PayloadCodec(keys={"2026": file.read_bytes()}))[1]
    assert right["message"]["count"] == 10
