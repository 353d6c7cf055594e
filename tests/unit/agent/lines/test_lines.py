from millrace_server.agent.lines.lines import Lines, LinesBuilder


def test_parts_of_lines_adjoin_and_cover_all() -> None:
    """Cut into batches, no event and no byte is lost."""
    lines = Lines(100, 7, [b"a", b"b", b"c"], [2, 5, 2])
    parts = list(lines.parts(2))
    assert parts == [Lines(100, 7, [b"a", b"b"], [2, 5]), Lines(114, 0, [b"c"], [2])]
    assert [part.end for part in parts] == [114, 116]
    assert [part.offsets for part in parts] == [[107, 109], [114]]
    assert lines.end == 116


def test_parts_of_large_lines_keep_the_limit_of_bytes() -> None:
    """A part has no more bytes of bodies than it may, unless it is a single event."""
    lines = Lines(0, 0, [b"aaaa", b"bb", b"cccccccc", b"", b"d"], [5, 3, 9, 1, 2])
    assert [part.bodies for part in lines.parts(10, 6)] == [[b"aaaa", b"bb"], [b"cccccccc"], [b"", b"d"]]
    assert [part.bodies for part in lines.parts(1, 6)] == [[body] for body in lines.bodies]
    assert [part.bodies for part in lines.parts(10, 0)] == [[b"aaaa"], [b"bb"], [b"cccccccc"], [b""], [b"d"]]


def test_parts_of_lines_that_were_left_out_have_no_events() -> None:
    """Bytes that belong to no event must still be covered by a part."""
    assert list(Lines(5, 3, [], []).parts(10)) == [Lines(5, 3, [], [])]
    assert list(Lines(5, 0, [], []).parts(10)) == []


def test_first_of_lines_covers_what_they_cover() -> None:
    """A beginning ends where the next event begins."""
    lines = Lines(0, 1, [b"a", b"b"], [4, 2]).first(1)
    assert (lines.bodies, lines.end) == ([b"a"], 5)


def test_leave_out_counts_to_the_event_before() -> None:
    """Bytes after an event belong to it; bytes before the first one are skipped."""
    builder = LinesBuilder(10)
    builder.skip(3)
    builder.add(b"a", 2)
    builder.skip(5)
    builder.extend([b"b"], [2])
    assert builder.build() == Lines(10, 3, [b"a", b"b"], [7, 2])
