"""Draws the diagrams of the documentation in `docs/images`, each for light and for dark pages.

`make docs` runs it.
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_TITLE, _LINE = 15, 18
_HEAD = 6
"""Half of the width of an arrow's head."""


class Palette(NamedTuple):
    """Colours of one scheme: of words, lines, boxes, channels and what surrounds boxes."""

    words: str
    soft: str
    box: str
    channel: str
    surrounding: str


SCHEMES = {
    "light": Palette("#1f2328", "#57606a", "#ffffff", "#d7ebff", "#f3f5f8"),
    "dark": Palette("#e6edf3", "#9da7b1", "#22272e", "#16385c", "#1b2027"),
}


class Box(NamedTuple):
    """A rectangle with a title and lines below it; a channel has the form of a store, and a frame surrounds boxes."""

    left: int
    top: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    kind: Literal["plain", "channel", "frame"] = "plain"


class Arrow(NamedTuple):
    """A line through points, with a head at its end and perhaps words above its middle."""

    points: tuple[tuple[int, int], ...]
    words: str = ""
    is_dashed: bool = False


class Diagram(NamedTuple):
    """A picture: its size, its text alternative, and its parts."""

    width: int
    height: int
    described: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


FLOW = Diagram(
    890,
    330,
    "Sources and programs put events into the channels of millraced; sinks, programs and Spark take them out",
    [
        Box(240, 10, 400, 310, "millraced", kind="frame"),
        Box(10, 50, 190, 84, "Inputs", ("log files, directories,", "HTTP, syslog, Kafka")),
        Box(10, 214, 190, 84, "Programs, shells", ("millrace_client", "millrace put")),
        Box(262, 50, 160, 84, "Sources", ("interceptors,", "selectors")),
        Box(462, 50, 160, 84, "Sinks", ("sink groups,", "dead letters")),
        Box(300, 206, 290, 96, "Channels", ("memory, or a log on disk", "transactions, claims"), "channel"),
        Box(690, 10, 190, 62, "Files, HTTP, Kafka", ("here, S3, HDFS",)),
        Box(690, 92, 190, 62, "The next millraced", ("exactly once",)),
        Box(690, 180, 190, 62, "Programs", ("take, consume",)),
        Box(690, 256, 190, 62, "Spark", ("claim, read, acknowledge",)),
    ],
    [
        Arrow(((200, 92), (262, 92))),
        Arrow(((200, 256), (300, 256))),
        Arrow(((342, 134), (342, 206))),
        Arrow(((542, 206), (542, 134))),
        Arrow(((622, 76), (656, 76), (656, 41), (690, 41))),
        Arrow(((622, 110), (656, 110), (656, 123), (690, 123))),
        Arrow(((590, 240), (656, 240), (656, 211), (690, 211))),
        Arrow(((590, 272), (656, 272), (656, 287), (690, 287))),
    ],
)
AGENT = Diagram(
    890,
    220,
    "A source passes events through interceptors and a selector into channels, from which sinks take them",
    [
        Box(10, 40, 130, 64, "Source", ("batches",)),
        Box(190, 40, 130, 64, "Interceptors", ("change, drop",)),
        Box(370, 40, 130, 64, "Selector", ("chooses",)),
        Box(550, 34, 140, 76, "Channels", ("commit",), "channel"),
        Box(740, 40, 140, 64, "Sink", ("or sink group",)),
        Box(550, 150, 140, 62, "Dead letters", (), "channel"),
    ],
    [
        Arrow(((140, 72), (190, 72))),
        Arrow(((320, 72), (370, 72))),
        Arrow(((500, 72), (550, 72))),
        Arrow(((690, 72), (740, 72))),
        Arrow(((75, 104), (75, 182), (550, 182)), "what cannot be stored", is_dashed=True),
        Arrow(((810, 104), (810, 182), (690, 182)), "rejected", is_dashed=True),
    ],
)
FAN_OUT = Diagram(
    760,
    250,
    "Producers append to a source, which stores each event in the channels of all groups of consumers",
    [
        Box(10, 92, 140, 62, "Producers", ("append to orders",)),
        Box(210, 92, 150, 62, "Source orders", ("type grpc",)),
        Box(420, 8, 140, 68, "billing", ("file",), "channel"),
        Box(420, 90, 140, 68, "search", ("file",), "channel"),
        Box(420, 172, 140, 68, "recent", ("memory, optional",), "channel"),
        Box(610, 10, 140, 62, "Accounts", ("consumers",)),
        Box(610, 92, 140, 62, "Index", ("consumers",)),
        Box(610, 174, 140, 62, "A dashboard", ("may miss events",)),
    ],
    [
        Arrow(((150, 123), (210, 123))),
        Arrow(((360, 110), (390, 110), (390, 42), (420, 42))),
        Arrow(((360, 124), (420, 124))),
        Arrow(((360, 138), (390, 138), (390, 206), (420, 206)), is_dashed=True),
        Arrow(((560, 42), (610, 42))),
        Arrow(((560, 124), (610, 124))),
        Arrow(((560, 206), (610, 206)), is_dashed=True),
    ],
)
ARCHITECTURE = Diagram(
    680,
    510,
    "Services and the agent call channels on one event loop; journals hand records to threads that write the log",
    [
        Box(30, 10, 190, 58, "Clients", ("programs, Spark, agents",)),
        Box(244, 10, 190, 58, "Operators", ("browser, Prometheus",)),
        Box(458, 10, 190, 58, "Inputs, outputs", ("files, HTTP, Kafka",)),
        Box(10, 92, 660, 276, "One event loop", kind="frame"),
        Box(30, 126, 190, 62, "gRPC services", ("channels, administration",)),
        Box(244, 126, 190, 62, "HTTP, console", ("metrics, health, events",)),
        Box(458, 126, 190, 62, "Agent", ("sources, sinks",)),
        Box(30, 216, 618, 62, "Channels", ("queue, transactions, deliveries, claims, stamps",), "channel"),
        Box(30, 306, 618, 48, "Journal: the order of commits on their way to the log"),
        Box(10, 392, 424, 108, "Threads, shared by the logs of a disk", kind="frame"),
        Box(30, 428, 180, 58, "Log writer", ("write, one fdatasync",)),
        Box(234, 428, 180, 58, "Segments", ("and checkpoints",), "channel"),
        Box(458, 428, 190, 58, "NATS JetStream", ("for replicated channels",), "channel"),
    ],
    [
        Arrow(((125, 68), (125, 126))),
        Arrow(((274, 68), (274, 126))),
        Arrow(((553, 68), (553, 126))),
        Arrow(((125, 188), (125, 216))),
        Arrow(((339, 188), (339, 216))),
        Arrow(((553, 188), (553, 216))),
        Arrow(((339, 278), (339, 306))),
        Arrow(((60, 354), (60, 428))),
        Arrow(((210, 457), (234, 457))),
        Arrow(((553, 354), (553, 428)), is_dashed=True),
    ],
)
DIAGRAMS = {"flow": FLOW, "agent": AGENT, "fan-out": FAN_OUT, "architecture": ARCHITECTURE}


def drawn(diagram: Diagram, palette: Palette) -> str:
    """A diagram as SVG."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {diagram.width} {diagram.height}" role="img"'
    words = f'aria-label="{escape(diagram.described)}" font-family="system-ui, sans-serif" font-size="13"'
    frames = [box for box in diagram.boxes if box.kind == "frame"]
    others = [box for box in diagram.boxes if box.kind != "frame"]
    parts = [f"{head} {words}>"]
    parts += [part for box in frames for part in _box(box, palette)]
    parts += [part for arrow in diagram.arrows for part in _arrow(arrow, palette)]
    parts += [part for box in others for part in _box(box, palette)]
    return "\n".join([*parts, "</svg>\n"])


def _box(box: Box, palette: Palette) -> Iterator[str]:
    fill = {"plain": palette.box, "channel": palette.channel, "frame": palette.surrounding}[box.kind]
    radius = {"plain": 4, "channel": 16, "frame": 8}[box.kind]
    place = f'x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" rx="{radius}"'
    yield f'<rect {place} fill="{fill}" stroke="{palette.soft}"/>'
    middle = box.left + box.width / 2
    height = _TITLE + _LINE * len(box.lines)
    base = box.top + (24 if box.kind == "frame" else (box.height - height) / 2 + _TITLE - 2)
    yield _words(middle, base, box.title, palette.words, "600")
    for number, line in enumerate(box.lines, 1):
        yield _words(middle, base + number * _LINE, line, palette.soft)


def _arrow(arrow: Arrow, palette: Palette) -> Iterator[str]:
    way = "L".join(f"{x} {y}" for x, y in arrow.points)
    dashes = ' stroke-dasharray="5 4"' if arrow.is_dashed else ""
    yield f'<path d="M{way}" fill="none" stroke="{palette.soft}" stroke-width="1.5"{dashes}/>'
    (from_x, from_y), (x, y) = arrow.points[-2:]
    # Unit vectors along the arrow and across it: arrows are horizontal or vertical.
    ahead_x, ahead_y = (x > from_x) - (x < from_x), (y > from_y) - (y < from_y)
    corners = [
        (x - 10 * ahead_x + side * _HEAD * ahead_y, y - 10 * ahead_y + side * _HEAD * ahead_x) for side in (-1, 1)
    ]
    yield f'<path d="M{x} {y}{"".join(f"L{a} {b}" for a, b in corners)}z" fill="{palette.soft}"/>'
    if arrow.words:
        # Above its longest horizontal part.
        (first_x, first_y), (last_x, _) = max(
            zip(arrow.points, arrow.points[1:], strict=False), key=lambda pair: abs(pair[0][0] - pair[1][0])
        )
        yield _words((first_x + last_x) / 2, first_y - 7, arrow.words, palette.soft)


def _words(x: float, y: float, words: str, colour: str, weight: str = "400") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="middle"'
    return f'<text {place} fill="{colour}" font-weight="{weight}">{escape(words)}</text>'


def main() -> None:
    """Writes all diagrams in both schemes."""
    for name, diagram in DIAGRAMS.items():
        for scheme, palette in SCHEMES.items():
            (IMAGES / f"{name}-{scheme}.svg").write_text(drawn(diagram, palette), encoding="utf-8")


if __name__ == "__main__":
    main()
