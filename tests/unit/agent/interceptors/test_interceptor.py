from typing import Any

import pytest

from millrace_server.agent.events import EventTable
from tests.custom_interceptors import FixedResult
from tests.source_writers import table_of
from tests.unit.agent.interceptors.configured_interceptors import intercepted, interceptor, problem_with


def test_own_interceptor_gets_its_options_and_a_table_of_its_own() -> None:
    """The interceptor may change the lists, since it gets a copy."""
    table = table_of(b"a", b"b", n=["1", "2"])
    table.batch_indexes = range(2)
    made = interceptor(type="custom", factory="tests.custom_interceptors:Uppercase", options={"mark": b"?"})
    passed = made.intercept(table)
    assert list(passed.rows()) == [({"n": "1", "shouted": "yes"}, b"A?"), ({"n": "2", "shouted": "yes"}, b"B?")]
    assert passed.batch_indexes == range(2)
    assert (table.bodies, table.headers) == ([b"a", b"b"], {"n": ["1", "2"]})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "must return an EventTable, not NoneType"),
        ([b"a"], "must return an EventTable, not list"),
        (EventTable([b"a", b"b"], {"h": ["x"]}), "returned 1 values of header 'h', not 2"),
        (EventTable(["a"]), "returned a body that is not bytes"),  # type: ignore[list-item] # that is what is tested
        (EventTable([b"a"], {"h": [1]}), "returned a value of header 'h' that is not str"),  # type: ignore[list-item] # likewise
    ],
)
def test_custom_interceptor_that_returns_what_cannot_be_stored_raises(
    monkeypatch: pytest.MonkeyPatch, result: Any, said: str
) -> None:
    """The error is raised in the interceptor, not later."""
    monkeypatch.setattr("tests.custom_interceptors.Blocking", lambda: FixedResult(result))
    with pytest.raises((TypeError, ValueError), match=said):
        intercepted(table_of(b"a", b"b"), type="custom", factory="tests.custom_interceptors:Blocking")


def test_own_interceptor_that_makes_another_table_has_its_places_forgotten() -> None:
    """The events can no longer be matched with the source's."""
    table = table_of(b"a", b"b")
    table.batch_indexes = range(2)
    wrong = EventTable([b"x"])
    wrong.batch_indexes = range(2)
    made = interceptor(type="custom", factory="tests.custom_interceptors:FixedResult", options={"result": wrong})
    assert made.intercept(table).batch_indexes is None


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        ("tests.custom_interceptors", 'factory: is "tests.custom_interceptors"; it must be "package.module:name"'),
        (":Uppercase", 'factory: is ":Uppercase"; it must be "package.module:name"'),
        (
            "tests.nowhere:Uppercase",
            (
                'factory: is "tests.nowhere:Uppercase", which cannot be imported '
                "(ModuleNotFoundError: No module named 'tests.nowhere')"
            ),
        ),
        (
            "tests.custom_interceptors:Missing",
            (
                'factory: is "tests.custom_interceptors:Missing", which cannot be imported '
                "(AttributeError: module 'tests.custom_interceptors' has no attribute 'Missing')"
            ),
        ),
        (
            "tests.custom_interceptors:NOT_CALLABLE",
            'factory: is "tests.custom_interceptors:NOT_CALLABLE", which is not callable',
        ),
    ],
)
def test_own_interceptor_that_cannot_be_found_is_refused(factory: str, problem: str) -> None:
    """The error appears when the configuration is checked, in one line."""
    assert problem_with(type="custom", factory=factory) == problem


def test_custom_module_that_exits_the_program_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check continues, whatever a user's module does while it is imported."""
    (tmp_path / "leaving_module.py").write_text("raise SystemExit('bye')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert problem_with(type="custom", factory="leaving_module:x") == (
        'factory: is "leaving_module:x", which cannot be imported (SystemExit: bye)'
    )
