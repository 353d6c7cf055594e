import pytest

from millrace_spark.errors import format_error


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "Traceback\nmillrace_spark.errors.MillraceSparkError: channel web: is\n not there\n\tat org.x",
            "channel web: is not there",
        ),
        (
            "[FOO] boo\n\tat org.apache\nCaused by: java.io.IOException: No space left on device",
            "No space left on device",
        ),
        ("Traceback\nValueError: no SQLSTATE: 38000", "no"),
        ("[PATH_NOT_FOUND] Path does not exist: x.\nMore", "[PATH_NOT_FOUND] Path does not exist: x."),
        ("", "Exception"),
        ("x" * 2_000, "x" * 600 + "…"),
    ],
)
def test_format_error_leaves_traces_out(text: str, reported: str) -> None:
    """The sentence is the connector's own, else the last cause, else the first line."""
    sentence = format_error(Exception(text))
    assert sentence.startswith(reported)
    assert "\n" not in sentence
    assert "SQLSTATE" not in sentence
