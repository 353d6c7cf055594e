from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.setting_file import FILE_BYTES_MAX, SettingsError
from millrace.units import KIB, MIB
from millrace_server.channels.config import EncryptionConfig, FileChannelConfig
from millrace_server.configuration.settings import ServerSettings, load_settings
from tests.unit.configuration.settings_file import load, problems_of

DESIGN_EXAMPLE = """
[server]
listen = "127.0.0.1:7070"          # port 0: any free port
http_listen = "127.0.0.1:7071"
data_dir = "millrace-data"
message_bytes_max = 67108864
open_transactions_max = 10000

[channels.orders]
type = "file"                       # memory, file
capacity = 1000000
transaction_capacity = 10000
byte_capacity = 8589934592
keep_alive_seconds = 3
lease_seconds = 30.0
checkpoint_interval_seconds = 30.0
"""

FULL_EXAMPLE = """
[channels.orders]
type = "file"
data_dirs = ["/disk-1", "disk-2"]
checkpoint_dir = "/disk-3"
backup_checkpoint = false
checkpoint_interval_seconds = 0.1
segment_bytes_max = 65536
min_free_bytes = 0
fsync = "interval"
fsync_interval_seconds = 0.01
compression = "zstd"
[channels.orders.encryption]
active_key = "2026"
[channels.orders.encryption.keys]
2025 = "/etc/millrace/key-2025"
2026 = "/etc/millrace/key-2026"
"""

MANY_PROBLEMS = """
sinkss = {}
[server]
lisen = "127.0.0.1:0"
http_listen = "nowhere"
message_bytes_max = "5"
reflection = 1
shutdown_grace_seconds = nan
[channels.orders]
type = "fiel"
capacity = 0
keep_alive_seconds = -1
[channels.pay.ments]
type = "memory"
[channels.logs]
type = "file"
data_dirs = ["", "a", 3]
checkpoint_dir = "a\\u0000b"
segment_bytes_max = 1
fsync_interval_seconds = nan
[channels.logs.encryption]
active_key = ""
[channels.logs.encryption.keys]
"a b" = "/key"
[channels."BAD name\\n"]
type = "memory"
lease_seconds = 0
"""


def test_load_without_a_file_gives_the_documented_defaults() -> None:
    """A server needs no configuration."""
    defaults = load_settings()
    assert defaults.channels == {}
    assert defaults.server == ServerSettings(
        listen="127.0.0.1:7070",
        http_listen="127.0.0.1:7071",
        data_dir=Path("millrace-data"),
        message_bytes_max=64 * MIB,
        open_transactions_max=10_000,
        inflight_bytes_max=512 * MIB,
        inflight_bytes_per_connection_max=128 * MIB,
        reflection=True,
        channelz=True,
        shutdown_grace_seconds=10.0,
        allow_plaintext=False,
    )


def test_load_of_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    """An empty file sets nothing."""
    assert load(tmp_path, "") == load_settings()


def test_load_of_the_documented_example_gives_what_it_says(tmp_path: Path) -> None:
    """The example is valid, and integers are accepted for seconds."""
    loaded = load(tmp_path, DESIGN_EXAMPLE)
    orders = loaded.channels["orders"]
    assert (orders.capacity, orders.transaction_capacity, orders.keep_alive_seconds) == (1_000_000, 10_000, 3.0)
    assert orders == load(tmp_path, '[channels.orders]\ntype = "file"\n').channels["orders"]


def test_load_of_a_file_channel_with_everything_said_gives_it(tmp_path: Path) -> None:
    """All settings are read; paths stay as written."""
    orders = load(tmp_path, FULL_EXAMPLE).channels["orders"]
    assert orders == FileChannelConfig(
        type="file",
        data_dirs=[Path("/disk-1"), Path("disk-2")],
        checkpoint_dir=Path("/disk-3"),
        backup_checkpoint=False,
        checkpoint_interval_seconds=0.1,
        segment_bytes_max=64 * KIB,
        min_free_bytes=0,
        fsync="interval",
        fsync_interval_seconds=0.01,
        compression="zstd",
        encryption=EncryptionConfig(
            active_key="2026",
            keys={"2025": Path("/etc/millrace/key-2025"), "2026": Path("/etc/millrace/key-2026")},
        ),
    )


def test_load_with_a_byte_order_mark_reads_the_file(tmp_path: Path) -> None:
    """A byte order mark at the beginning of the file is ignored."""
    assert load(tmp_path, b"\xef\xbb\xbf[server]\nreflection = false\n").server.reflection is False


def test_load_when_much_is_wrong_names_every_problem(tmp_path: Path) -> None:
    """All problems are reported at once, in their order in the file, with path, value and what is allowed."""
    assert problems_of(tmp_path, MANY_PROBLEMS) == [
        "sinkss: is not known; did you mean sinks?",
        "server.lisen: is not known; did you mean listen?",
        'server.http_listen: is "nowhere"; it must be host:port, such as 127.0.0.1:7070 or [::1]:7070',
        (
            'server.message_bytes_max: is "5"; it must be a whole number from 4_096 to 1_073_741_824, or text such as '
            '"64MiB"'
        ),
        "server.reflection: is 1; it must be true or false",
        "server.shutdown_grace_seconds: is nan; it must be a number from 0 to 3_600",
        (
            'channels.orders.type: is "fiel"; it must be "memory" or "file" or "spillable" or "replicated"; '
            'did you mean "file"?'
        ),
        "channels.orders.capacity: is 0; it must be a whole number from 1 to 1_000_000_000",
        "channels.orders.keep_alive_seconds: is -1; it must be a number from 0 to 3_600",
        'channels.pay.type: is missing; it must be "memory" or "file" or "spillable" or "replicated"',
        (
            "channels.pay.ments: is a table where none is allowed; "
            'if the channel\'s name has dots, write [channels."pay.ments"]'
        ),
        'channels.logs.data_dirs[0]: is ""; it must be the path of a file or directory',
        "channels.logs.data_dirs[2]: is 3; it must be a path in quotes",
        'channels.logs.checkpoint_dir: is "a\\u0000b"; it must be the path of a file or directory',
        "channels.logs.segment_bytes_max: is 1; it must be a whole number from 65_536 to 1_099_511_627_776",
        "channels.logs.fsync_interval_seconds: is nan; it must be a number from 0.01 to 3_600",
        'channels.logs.encryption.active_key: is ""; it must match [A-Za-z0-9._-]{1,64}',
        'channels.logs.encryption.keys."a b": is not a name that is allowed here; it must match [A-Za-z0-9._-]{1,64}',
        'channels."BAD name\\n": is not a name that is allowed here; it must match [a-z0-9][a-z0-9._-]{0,63}',
        'channels."BAD name\\n".lease_seconds: is 0; it must be a number above 0, at most 3_600',
    ]


@pytest.mark.parametrize("channel_type", ['"kafka"', '"jdbc"', '""', "3", "true"])
def test_load_when_a_channel_type_is_not_there_says_which_are(tmp_path: Path, channel_type: str) -> None:
    """Unknown types are refused with the list of known ones."""
    toml = f"[channels.orders]\ntype = {channel_type}\n"
    said = f'is {channel_type}; it must be "memory" or "file" or "spillable" or "replicated"'
    assert problems_of(tmp_path, toml) == [f"channels.orders.type: {said}"]


def test_load_when_a_channel_type_is_missing_tells_what_is_wrong_with_any_type(tmp_path: Path) -> None:
    """Settings that are valid for one of the types are not reported."""
    toml = '[channels.orders]\nfsync = "commit"\ncapacity = 5000\ntransaction_capacity = 5001\nkeep_alive = 1\n'
    kind, capacity, keep_alive = problems_of(tmp_path, toml)
    assert kind == 'channels.orders.type: is missing; it must be "memory" or "file" or "spillable" or "replicated"'
    assert capacity == "channels.orders.transaction_capacity: is 5001; it must not be above capacity, 5000"
    assert keep_alive == "channels.orders.keep_alive: is not known; did you mean keep_alive_seconds?"


@pytest.mark.parametrize("channel", ["3", "[]", '"memory"', "true"])
def test_load_when_a_channel_is_no_table_says_so(tmp_path: Path, channel: str) -> None:
    """A channel is a table, whatever its type."""
    [problem] = problems_of(tmp_path, f"[channels]\norders = {channel}\n")
    assert problem.startswith("channels.orders: is ")
    assert problem.endswith("; it must be a table")


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('type = "memory"\nfsync = "commit"', 'fsync: is only for type "file" or "spillable"'),
        ('type = "memory"\nencryption = {}', 'encryption: is only for type "file" or "spillable" or "replicated"'),
        ('type = "file"\nfsnc = "commit"', "fsnc: is not known; did you mean fsync?"),
        ('type = "file"\nencyption = {}', "encyption: is not known; did you mean encryption?"),
        (
            'type = "file"\ncapacities = {}',
            (
                "capacities: is a table where none is allowed; "
                'if the channel\'s name has dots, write [channels."orders.capacities"]'
            ),
        ),
        ('type = "file"\nfsync = "always"', 'fsync: is "always"; it must be "commit" or "interval"'),
        ('type = "file"\ncompression = "gzip"', 'compression: is "gzip"; it must be "none" or "zstd"'),
        (
            f'type = "file"\nfsync = "{"x" * 100}"',
            f'fsync: is "{"x" * 80}"... (100 characters); it must be "commit" or "interval"',
        ),
        ('type = "file"\nbackup_checkpoint = 1', "backup_checkpoint: is 1; it must be true or false"),
        ('type = "file"\ndata_dirs = "/disk"', 'data_dirs: is "/disk"; it must be an array, each a path in quotes'),
        (
            'type = "file"\ndata_dirs = ["/disk-1", "/disk-2", "/disk-2/../disk-1"]',
            'data_dirs: has "/disk-1" and "/disk-2/../disk-1", which are the same directory; each must be another one',
        ),
        ('type = "file"\nencryption = true', "encryption: is true; it must be a table"),
        (
            'type = "file"\nencryption = { active_key = "b", keys = { a = "/k" } }',
            'encryption.active_key: is "b"; it must be the id of one of the keys, "a"',
        ),
        (
            'type = "file"\nencryption = { active_key = "b", keys = {} }',
            'encryption.active_key: is "b"; it must be the id of one of the keys, of which there is none',
        ),
        (
            'type = "file"\nencryption = { active_key = "a", keys = { a = 3 } }',
            "encryption.keys.a: is 3; it must be a path in quotes",
        ),
        (
            'type = "file"\nencryption = { active_key = "a", keys = { a = "/k" }, kys = {} }',
            "encryption.kys: is not known; did you mean keys?",
        ),
        ('type = "file"\nencryption = { active_key = "a" }', "encryption.keys: is missing; it must be a table"),
        (
            'type = "file"\nencryption = { keys = { a = "/k" } }',
            "encryption.active_key: is missing; it must be text",
        ),
    ],
)
def test_load_when_a_setting_of_a_type_is_wrong_says_where(tmp_path: Path, toml: str, problem: str) -> None:
    """The path is that of the file, without the tags of the type unions."""
    assert problems_of(tmp_path, f"[channels.orders]\n{toml}\n") == [f"channels.orders.{problem}"]


def test_load_when_data_dirs_are_one_directory_by_a_link_refuses_them(tmp_path: Path) -> None:
    """Two names of one directory would look like two disks."""
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    toml = f'[channels.orders]\ntype = "file"\ndata_dirs = ["{tmp_path}/disk", "{tmp_path}/link"]\n'
    [problem] = problems_of(tmp_path, toml)
    assert "which are the same directory" in problem


@pytest.mark.parametrize("value", ["true", '"100"', "1.5", "[1]", "{}", "1979-05-27", "-1", "0", "0xffffffffffff"])
def test_load_when_a_capacity_is_no_whole_number_refuses_it(tmp_path: Path, value: str) -> None:
    """TOML has types: values are not converted to numbers."""
    problems = problems_of(
        tmp_path, f'[channels.orders]\ntype = "memory"\ntransaction_capacity = 1\ncapacity = {value}\n'
    )
    assert len(problems) == 1
    assert problems[0].startswith("channels.orders.capacity: is ")
    assert "; it must be a whole number from 1 to 1_000_000_000" in problems[0]


def test_load_when_a_transaction_may_hold_more_than_the_channel_refuses_it(tmp_path: Path) -> None:
    """Violations between a channel's fields are reported at the field."""
    toml = '[channels.orders]\ntype = "memory"\ncapacity = 5\ntransaction_capacity = 7\n'
    assert problems_of(tmp_path, toml) == [
        "channels.orders.transaction_capacity: is 7; it must not be above capacity, 5"
    ]


def test_load_when_a_small_channel_says_no_more_reduces_the_default(tmp_path: Path) -> None:
    """A channel of 5 events needs no setting for its transactions."""
    assert load(tmp_path, '[channels.a]\ntype = "memory"\ncapacity = 5\n').channels["a"].transaction_capacity == 5


@pytest.mark.parametrize("name", ["a", "0", "a.b", "a-b_c.d", "x" * 64])
def test_load_with_a_good_channel_name_takes_it(tmp_path: Path, name: str) -> None:
    """Names consist of lower-case letters, digits, dots, hyphens and underscores."""
    assert list(load(tmp_path, f'[channels."{name}"]\ntype = "memory"\n').channels) == [name]


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "A", "é", "../x", "a/b", "%2e", "a\\n", "a\\u0000", "x" * 65])
def test_load_with_a_bad_channel_name_refuses_it(tmp_path: Path, name: str) -> None:
    """Names with a meaning in file systems, logs or URLs are refused."""
    problems = problems_of(tmp_path, f'[channels."{name}"]\ntype = "memory"\n')
    assert len(problems) == 1
    assert problems[0].endswith("it must match [a-z0-9][a-z0-9._-]{0,63}")
    assert problems[0].isascii()
    assert problems[0].isprintable()


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("a = [[", "is not TOML at column 7: Invalid value"),
        ("[server]\nlisten =\n", "is not TOML at column 9: Invalid value"),
        ("[server]\n[server]\n", "is not TOML at column 8: Cannot declare ('server',) twice"),
        ('a = "x', "is not TOML at column 7: Unterminated string"),
        (b"a = 1\n\nb = '\xfc'\n", "is not UTF-8, the only encoding of TOML"),
        ("a = 1".encode("utf-16"), "is not UTF-8, the only encoding of TOML"),
        ("a = " + "[" * 100_000, "is nested too deeply"),
        ("#" * (FILE_BYTES_MAX + 1), f"is larger than {FILE_BYTES_MAX} bytes, the most that is allowed"),
    ],
)
def test_load_when_the_file_is_no_toml_says_where(tmp_path: Path, toml: str | bytes, problem: str) -> None:
    """Syntax errors contain line and column."""
    assert problems_of(tmp_path, toml) == [problem]


def test_load_with_a_number_beyond_python_says_that_it_is_no_toml(tmp_path: Path) -> None:
    """Numbers of thousands of digits are refused without a traceback."""
    assert problems_of(tmp_path, "a = " + "9" * 5_000)[0].startswith("is not TOML: ")
    assert "a whole number of 20000 bits" in problems_of(tmp_path, "[server]\nmessage_bytes_max = 0x" + "f" * 5_000)[0]


def test_load_when_the_file_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A missing file, a directory and an impossible name are distinguished."""
    for path, why in (
        (tmp_path / "none.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (Path("a\0b"), "the name is not a valid path"),
    ):
        with pytest.raises(SettingsError, match=why) as caught:
            load_settings(path)
        assert caught.value.source == str(path)


def test_load_with_overrides_prefers_them(tmp_path: Path) -> None:
    """The command line takes precedence over the file, also if the file's value is wrong."""
    loaded = load(tmp_path, '[server]\nlisten = "nowhere"\n', {"listen": "127.0.0.1:0", "data_dir": "/srv"})
    assert (loaded.server.listen, loaded.server.data_dir) == ("127.0.0.1:0", Path("/srv"))


def test_load_with_overrides_when_server_is_no_table_tells_that(tmp_path: Path) -> None:
    """Overrides need a table."""
    assert problems_of(tmp_path, "server = 3\n", {"listen": "127.0.0.1:0"}) == ["server: is 3; it must be a table"]


def test_load_with_a_bad_override_names_the_command_line() -> None:
    """Without a file the error names the command line."""
    with pytest.raises(SettingsError, match=r'^command line: server\.listen: is "x"; it must be host:port'):
        load_settings(None, {"listen": "x"})


TOML_VALUES = st.one_of(
    st.booleans().map(lambda value: "true" if value else "false"),
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.sampled_from(["nan", "inf", "-inf", "1e400", "0.5", '""', '"x"', "[]", "{}", "[{}]", "{a = 1}", "00:00:00"]),
    st.sampled_from(['"file"', '"memory"', '["x", "x"]']),
)
KEYS = st.sampled_from(
    [*ServerSettings.model_fields, *FileChannelConfig.model_fields, "x", '"\\u0000"', "channels", "server"]
)
TABLES = ["server", "channels.a", "channels.a.encryption", "channels.a.encryption.keys", '"\\n"', "channels"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(TABLES), KEYS, TOML_VALUES), max_size=8))
def test_load_of_random_tables_ends_in_settings_or_sentences(tmp_path: Path, lines: list[tuple[str, str, str]]) -> None:
    """Any file results in a configuration or printable sentences, never in another error."""
    toml = "\n".join(f"{table}.{key} = {value}" for table, key, value in lines)
    problems = ["none"]
    try:
        load(tmp_path, toml)
    except SettingsError as error:
        problems = list(map(str, error.problems))
    assert problems
    assert all(problem.isprintable() for problem in problems), problems


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            "[auth]\n",
            (
                "auth: no caller could authenticate; there must be a tokens_file or a table jwt, or "
                'server.tls.client_certificate must be "required"'
            ),
        ),
        (
            "[roles.a]\nallow = []\n",
            "roles: has no effect without a table auth; add one",
        ),
        (
            '[auth]\ntokens_file = "/nowhere/tokens"\n',
            'auth.tokens_file: is "/nowhere/tokens", which cannot be read: No such file or directory',
        ),
        (
            '[auth]\ntokens_file = "/dev/null"\naudit_file = "/dev"\n',
            'auth.audit_file: is "/dev", which is a directory; it must be a file',
        ),
        (
            'auth.tokens_file="/dev/null"\nroles.r.allow=[]\nidentities.a = {roles = ["r"], quota.open_transactions=0}',
            "identities.a.quota.open_transactions: is 0; it must be a whole number of at least 1",
        ),
        (
            '[auth]\ntokens_file = "/dev/null"\n[roles.reader]\nallow = []\n[identities.a]\nroles = ["raeder"]\n',
            'identities.a.roles[0]: is "raeder"; it must be a role; did you mean "reader"?',
        ),
        (
            '[auth]\ntokens_file = "/dev/null"\n[identities.a]\nroles = ["b"]\n',
            'identities.a.roles[0]: is "b"; it must be a role, so there must be a table roles.b',
        ),
        (
            'auth.tokens_file = "/dev/null"\nroles.r.allow = []\nidentities."".roles = ["r"]\n',
            'identities."": is not the name of an identity: a pattern must have 1 to 255 printable characters',
        ),
        (
            '[auth]\ntokens_file = "/dev/null"\n[roles.r]\nallow = ["read"]\n',
            'roles.r.allow[0]: is "read"; it must be PERMISSION:PATTERN, such as append:web.* or *:*',
        ),
        (
            'auth.tokens_file = "/dev/null"\nroles.r.allow = []\n[identities]\n"a*".roles = ["r"]\n"*b".roles=["r"]\n',
            (
                'identities."*b": has the same length as "a*" and matches the same names; one of them must be longer, '
                "as the longest pattern applies"
            ),
        ),
    ],
)
def test_load_of_permissions_that_do_not_fit_says_so(tmp_path: Path, toml: str, problem: str) -> None:
    """Each problem is one sentence, with its path and what is allowed."""
    assert problems_of(tmp_path, toml) == [problem]
