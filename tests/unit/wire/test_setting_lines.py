import pytest

from millrace.setting_lines import SettingLines, SettingPath

TOML = '''\
# A comment with a bracket: [
[server]
listen = "a#[b"  # ]

[channels.orders]
type = "file"
data_dirs = [
  "[", # ]
  "b",
]
"quoted key" = """
[not.a.table]
"""
[[sources.web.interceptors]]
type = "host"
[[sources.web.interceptors]]
type = "static"
[sources.web.interceptors.deeper]
dotted.key = {inner = 1, other = [{x = 1}]}
text = """"quoted""""
last = 1'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("server",), 2),
        (("server", "listen"), 3),
        (("channels", "orders", "type"), 6),
        (("channels", "orders", "data_dirs"), 7),
        (("channels", "orders", "data_dirs", 1), 7),
        (("channels", "orders", "quoted key"), 11),
        (("channels", "orders", "capacity"), 5),
        (("sources", "web", "interceptors", 0, "type"), 15),
        (("sources", "web", "interceptors", 1, "type"), 17),
        (("sources", "web", "interceptors", 1, "deeper", "dotted", "key", "inner"), 19),
        (("sources", "web", "interceptors", 1, "deeper", "last"), 21),
        (("sources", "web", "type"), 14),
        (("sinks", "x"), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_of_a_setting_is_that_of_its_key_or_of_the_table_around_it(
    path: SettingPath, line: int | None, newline: str
) -> None:
    """Brackets in texts and comments end nothing, and values of several lines begin at their key."""
    assert SettingLines(TOML.replace("\n", newline)).line_of(path) == line
