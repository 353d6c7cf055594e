from pathlib import Path

import pytest

from millrace_server.agent.interceptors.headers import StaticConfig
from millrace_server.agent.selectors import MultiplexingConfig, ReplicatingConfig
from millrace_server.configuration.settings import Settings
from tests.unit.configuration import settings_file

CHANNELS = """
[channels.orders]
type = "memory"
[channels.audit]
type = "memory"
[channels.dead]
type = "memory"
"""

FULL_EXAMPLE = """
[sources.web]
type = "stdin"
channels = ["orders", "audit"]
selector = { type = "multiplexing", header = "kind", mapping = { a = ["orders"] }, optional = { b = ["audit"] } }
interceptors = [{ type = "timestamp" }, { type = "host", use = "ip" }, { type = "static", key = "k", value = "v" }]
batch_events_max = 50
dead_letter_channel = "dead"
"""

HTTP_SINK = '[sinks.out]\ntype = "http"\nchannel = "orders"\nurl = "http://127.0.0.1:9/"\n'
NOT_OWN = 'it must be one of sources.web.channels, of which there are: "orders"'
NO_SUCH = "it must be a channel of the configuration"
INTERCEPTOR_TYPES = (
    '"timestamp" or "host" or "static" or "uuid" or "remove_header" or "search_replace" or "regex_filter" or '
    '"regex_extractor" or "sample" or "throttle" or "dedupe" or "custom"'
)


def load(directory: Path, toml: str) -> Settings:
    return settings_file.load(directory, CHANNELS + toml)


def problems_of(directory: Path, toml: str) -> list[str]:
    return settings_file.problems_of(directory, CHANNELS + toml)


def source(settings: str) -> str:
    """A source with more settings than required."""
    return f'[sources.web]\ntype = "stdin"\n{settings}\n'


def test_load_of_a_source_with_everything_said_gives_it(tmp_path: Path) -> None:
    """Settings that are not given have the documented defaults: all events go to all channels, unchanged."""
    web = load(tmp_path, FULL_EXAMPLE).sources["web"]
    assert isinstance(web.selector, MultiplexingConfig)
    assert (web.channels, web.selector.optional, web.dead_letter_channel) == (
        ["orders", "audit"],
        {"b": ["audit"]},
        "dead",
    )
    assert [each.type for each in web.interceptors] == ["timestamp", "host", "static"]
    assert web.interceptors[2] == StaticConfig(type="static", key="k", value="v")
    plain = load(tmp_path, source('channels = ["orders"]')).sources["web"]
    assert plain.selector == ReplicatingConfig(type="replicating")
    assert (plain.interceptors, plain.dead_letter_channel, plain.batch_events_max) == ([], None, 1_000)


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (source('channels = ["ordrs"]'), f'sources.web.channels[0]: is "ordrs"; {NO_SUCH}; did you mean "orders"?'),
        (
            source('channels = ["orders", "x"]'),
            f'sources.web.channels[1]: is "x"; {NO_SUCH}, of which there are: "orders", "audit", "dead"',
        ),
        (
            source('channels = ["orders"]\ndead_letter_channel = "deed"'),
            f'sources.web.dead_letter_channel: is "deed"; {NO_SUCH}; did you mean "dead"?',
        ),
        (
            '[sinks.out]\ntype = "null"\nchannel = "x"',
            f'sinks.out.channel: is "x"; {NO_SUCH}, of which there are: "orders", "audit", "dead"',
        ),
        (
            f'{HTTP_SINK}dead_letter_channel = "dea"',
            f'sinks.out.dead_letter_channel: is "dea"; {NO_SUCH}; did you mean "dead"?',
        ),
        (
            source('channels = ["orders"]\nselector = { type = "replicating", optional = ["audit"] }'),
            f'sources.web.selector.optional[0]: is "audit"; {NOT_OWN}',
        ),
        (
            source(
                'channels = ["orders"]\n'
                'selector = { type = "multiplexing", header = "k", mapping = { "a b" = ["orders", "audit"] } }'
            ),
            f'sources.web.selector.mapping."a b"[1]: is "audit"; {NOT_OWN}',
        ),
    ],
)
def test_load_when_a_name_is_no_channel_s_says_where_and_which_there_are(
    tmp_path: Path, toml: str, problem: str
) -> None:
    """Flume accepts such a name, and fails at the first event."""
    assert problems_of(tmp_path, toml) == [problem]


def test_load_when_more_is_wrong_names_unknown_channels_too(tmp_path: Path) -> None:
    """A mistake elsewhere in a source, in its channel or in its type hides none of them."""
    problems = problems_of(
        tmp_path,
        """
[channels.bad]
type = "memory"
capacity = 0
[sources.web]
type = "stdin"
channels = ["bad", "nowhere"]
batch_events_max = 0
[sources.other]
type = "stdinn"
channels = ["nowhere"]
""",
    )
    assert [problem for problem in problems if "nowhere" in problem] == [
        f'sources.web.channels[1]: is "nowhere"; {NO_SUCH}, of which there are: "orders", "audit", "dead", "bad"',
        f'sources.other.channels[0]: is "nowhere"; {NO_SUCH}, of which there are: "orders", "audit", "dead", "bad"',
    ]


def test_load_when_there_is_no_channel_says_so(tmp_path: Path) -> None:
    """If `channels` is not a table, only that is reported."""
    for channels, expected in (
        ("", [f'sources.web.channels[0]: is "x"; {NO_SUCH}, of which there are: none']),
        ("channels = 3\n", ["channels: is 3; it must be a table"]),
    ):
        assert settings_file.problems_of(tmp_path, channels + source('channels = ["x"]')) == expected


def test_load_of_many_channels_names_some_of_them(tmp_path: Path) -> None:
    """The sentence stays short."""
    many = "".join(f'[channels.c{number}]\ntype = "memory"\n' for number in range(50))
    [problem] = problems_of(tmp_path, many + source('channels = ["?"]').replace("?", "zzz"))
    assert problem.endswith('"c5", "c6" and 43 more')


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("channels = []", "channels: has no value; it must have at least 1"),
        ('channels = ["orders", "audit", "orders"]', 'channels: lists "orders" twice; list each one once'),
        (
            'channels = ["orders"]\nlong_lines = "cut"',
            'long_lines: is "cut"; it must be "split" or "truncate" or "drop"',
        ),
        (
            'channels = ["orders"]\ninterceptors = "timestamp"',
            'interceptors: is "timestamp"; it must be an array, each a table',
        ),
        ('channels = ["orders"]\ninterceptors = ["timestamp"]', 'interceptors[0]: is "timestamp"; it must be a table'),
        (
            'channels = ["orders"]\ninterceptors = [{ type = "host" }, { type = "timestmp" }]',
            f'interceptors[1].type: is "timestmp"; it must be {INTERCEPTOR_TYPES}; did you mean "timestamp"?',
        ),
        (
            'channels = ["orders"]\ninterceptors = [{ header = "h" }]',
            f"interceptors[0].type: is missing; it must be {INTERCEPTOR_TYPES}",
        ),
        (
            'channels = ["orders"]\ninterceptors = [{ type = "timestamp", format = "unix" }]',
            'interceptors[0].format: is "unix"; it must be "millis" or "iso"',
        ),
        (
            'channels = ["orders"]\ninterceptors = [{ type = "timestamp", prefix = "a" }]',
            'interceptors[0].prefix: is only for type "uuid"',
        ),
        (
            'channels = ["orders"]\ninterceptors = [{ type = "regex_filter", pattern = "a(" }]',
            'interceptors[0].pattern: is "a(", which is not a valid regular expression: missing ) at position 2',
        ),
        (
            f'channels = ["orders"]\ninterceptors = [{{ type = "regex_filter", pattern = "{"a" * 10_001}" }}]',
            f'interceptors[0].pattern: is "{"a" * 80}"... (10001 characters); it must have at most 10000 characters',
        ),
        (
            'channels = ["orders"]\ninterceptors = [{ type = "static", headers = { a = 1 } }]',
            "interceptors[0].headers.a: is 1; it must be text",
        ),
        (
            'channels = ["orders"]\nselector = { type = "shuffle" }',
            'selector.type: is "shuffle"; it must be "replicating" or "multiplexing" or "load_balancing" or "custom"',
        ),
        (
            'channels = ["orders"]\nselector = { type = "multiplexing", header = "k", mapping = {} }',
            "selector.mapping: has no entry; it must have at least 1",
        ),
        (
            'channels = ["orders"]\nselector = { type = "multiplexing", header = "k", mapping = { a = [] } }',
            "selector.mapping.a: has no value; it must have at least 1",
        ),
        (
            'channels = ["orders"]\nselector = { type = "load_balancing", policy = "fastest" }',
            'selector.policy: is "fastest"; it must be "round_robin" or "random" or "key_hash" or "least_full"',
        ),
        (
            'channels = ["orders"]\nselector = { type = "load_balancing", header = "k" }',
            'selector.header: is "k"; it is only for policy "key_hash", not "round_robin"',
        ),
        (
            'channels = ["orders"]\nselector = { type = "replicating", optional = ["orders"] }',
            "selector: makes all channels optional; at least one of them must be required",
        ),
        (
            (
                'channels = ["orders", "audit"]\nselector = { type = "multiplexing", header = "k", '
                'mapping = { a = ["audit"] }, optional = { b = ["audit"] } }'
            ),
            'selector: sends events to "audit" both as optional and as required; a channel must be one or the other',
        ),
        (
            'channels = ["orders"]\ndead_letter_channel = "orders"',
            'dead_letter_channel: is "orders"; it must not be one of the source\'s own channels',
        ),
    ],
)
def test_load_when_a_source_s_setting_is_wrong_says_where(tmp_path: Path, settings: str, problem: str) -> None:
    """The path leads through arrays and tables, without the tags of the type unions."""
    assert problems_of(tmp_path, source(settings)) == [f"sources.web.{problem}"]


@pytest.mark.parametrize(("kind", "name"), [("sources", "source"), ("sinks", "sink")])
def test_load_when_a_name_has_dots_says_how_it_is_written(tmp_path: Path, kind: str, name: str) -> None:
    """TOML interprets it as nested tables."""
    problems = problems_of(tmp_path, f'[{kind}.a.b]\ntype = "custom"\n')
    dotted = f'is a table where none is allowed; if the {name}\'s name has dots, write [{kind}."a.b"]'
    assert f"{kind}.a.b: {dotted}" in problems


@pytest.mark.parametrize("kind", ["null", "logger", "files"])
@pytest.mark.parametrize("setting", ["deliveries_max = 3", 'dead_letter_channel = "dead"'])
def test_load_when_a_sink_that_never_rejects_has_settings_for_rejections_refuses(
    tmp_path: Path, kind: str, setting: str
) -> None:
    """A setting without effect is misleading."""
    path = 'path = "/data"\n' if kind == "files" else ""
    name = setting.partition(" ")[0]
    assert problems_of(tmp_path, f'[sinks.out]\ntype = "{kind}"\nchannel = "orders"\n{path}{setting}\n') == [
        f"sinks.out.{name}: has no effect here; a sink of this type never rejects an event"
    ]


def test_load_when_an_embedded_source_bounds_batches_refuses(tmp_path: Path) -> None:
    """The program's calls determine the batches."""
    embedded = '[sources.app]\ntype = "embedded"\nchannels = ["orders"]\nbatch_events_max = 5\n'
    assert problems_of(tmp_path, embedded) == [
        "sources.app.batch_events_max: has no effect here; events that a program puts together are stored together"
    ]


def test_load_when_a_sink_sets_aside_into_its_own_channel_refuses(tmp_path: Path) -> None:
    """A rejected event would return to the sink without end."""
    sink = f'{HTTP_SINK}dead_letter_channel = "orders"\n'
    problems = problems_of(tmp_path, sink)
    assert problems == ['sinks.out.dead_letter_channel: is "orders"; it must be a channel other than the sink\'s own']
