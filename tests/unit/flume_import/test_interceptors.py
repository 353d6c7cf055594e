from millrace_server.flume_import import Outcome
from tests.flume_imports import example, notes_of, outcomes_of, source_of, source_text, tables_of

EACH = """
type = exec
command = cat log
interceptors = t h st r u sr f x mine
interceptors.t.type = org.apache.flume.interceptor.TimestampInterceptor$Builder
interceptors.t.preserveExisting = true
interceptors.h.type = host
interceptors.h.useIP = false
interceptors.h.hostHeader = machine
interceptors.st.type = static
interceptors.st.key = site
interceptors.st.value = berlin
interceptors.r.type = remove_header
interceptors.r.withName = zero
interceptors.r.fromList = one;two
interceptors.r.fromListSeparator = ;
interceptors.u.type = org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder
interceptors.u.prefix = e-
interceptors.sr.type = search_replace
interceptors.sr.searchPattern = ([0-9]+)
interceptors.sr.replaceString = <$1>
interceptors.sr.charset = ISO-8859-1
interceptors.f.type = regex_filter
interceptors.f.regex = ^#
interceptors.f.excludeEvents = true
interceptors.x.type = regex_extractor
interceptors.x.regex = ^(\\\\S+) (\\\\S+)
interceptors.x.serializers = s1 s2
interceptors.x.serializers.s1.name = level
interceptors.x.serializers.s1.type = com.example.Own
interceptors.x.serializers.s2.name = when
interceptors.x.serializers.s2.type = org.apache.flume.interceptor.RegexExtractorInterceptorMillisSerializer
interceptors.x.serializers.s2.pattern = yyyy-MM-dd
interceptors.mine.type = com.example.Mine$Builder
interceptors.gone.type = host
"""


def test_import_of_each_interceptor_keeps_its_order_and_settings() -> None:
    """Types are given by short name or class; Flume's defaults are written where ours differ."""
    assert source_of(EACH)["interceptors"] == [
        {"type": "timestamp", "preserve_existing": True},
        {"type": "host", "use": "name", "header": "machine"},
        {"type": "static", "key": "site", "value": "berlin"},
        {"type": "remove_header", "names": ["zero", "one", "two"]},
        {"type": "uuid", "prefix": "e-"},
        {"type": "search_replace", "pattern": "([0-9]+)", "replacement": "<\\g<1>>"},
        {"type": "regex_filter", "pattern": "^#", "action": "drop"},
        {
            "type": "regex_extractor",
            "pattern": "^(\\S+) (\\S+)",
            "names": ["level", "when"],
            "millis": {"when": "%Y-%m-%d"},
        },
    ]


def test_import_of_interceptors_without_counterpart_says_what_to_do() -> None:
    """Those of a user's own, those that are not listed, and settings that are not supported."""
    notes, outcomes = notes_of(source_text(EACH)), outcomes_of(source_text(EACH))
    for key in ("mine.type", "gone.type", "sr.charset", "x.serializers.s1.type"):
        assert outcomes[f"a.sources.s.interceptors.{key}"] is Outcome.LEFT_OUT
    assert "write a interceptor" not in notes["a.sources.s.interceptors.mine"]
    assert outcomes["a.sources.s.interceptors.x.serializers.s2.pattern"] is Outcome.CHANGED


def test_import_of_a_host_interceptor_uses_the_address_by_default() -> None:
    """Flume's default is the address, ours the name."""
    [host, _] = tables_of(example("interceptors").replace("netcat", "http"))["sources"]["r1"]["interceptors"]
    assert host == {"type": "host", "use": "ip", "header": "hostname", "preserve_existing": False}


def test_import_of_combined_sets_of_characters_keeps_what_they_match() -> None:
    """Java's sets may hold others and be intersected, for which the expression gets a flag."""
    lines = "interceptors = f\ninterceptors.f.type = regex_filter\ninterceptors.f.regex = ^[a-z&&[^b]]"
    [converted] = source_of(f"type = seq\n{lines}")["interceptors"]
    assert converted["pattern"] == "(?V1)^[a-z&&[^b]]"


def test_import_of_the_guides_regular_expressions_keeps_what_they_match() -> None:
    """Escapes of Java's properties are those of the file, not of the expression; its digits are those of ASCII."""
    [extractor] = tables_of(example("regex_extractor").replace("netcat", "http"))["sources"]["r1"]["interceptors"]
    assert extractor["pattern"] == r"(?a)(\d):(\d):(\d)"
    [replacing] = tables_of(example("search_replace").replace("netcat", "http"))["sources"]["avrosrc"]["interceptors"]
    assert replacing["replacement"] == r"The hungry \g<2> ate the careless \g<1>"
