"""Roles and patterns."""

import re
from itertools import product

import pytest

from millrace_server.access.permissions import Grant, Permission, Policy, Rights, ambiguous_patterns, matches


def rights(*grants: str) -> Rights:
    return Rights(map(Grant.parse, grants))


def test_may_follows_permission_and_pattern() -> None:
    """A grant allows its permission on the names that match, and nothing else."""
    shipper = rights("append:web.*", "describe:*", "*:own")
    assert shipper.may(Permission.APPEND, "web.eu.1")
    assert not shipper.may(Permission.APPEND, "web")
    assert not shipper.may(Permission.TAKE, "web.eu.1")
    assert all(shipper.may(permission, "own") for permission in Permission)
    assert shipper.may_everywhere(Permission.DESCRIBE)
    assert not shipper.may_everywhere(Permission.ADMIN)


def test_may_with_any_name_holds_little_memory() -> None:
    """Callers may ask for any number of names, and for names of any length."""
    shipper = rights("append:a*b*c*d*e*f*")
    assert not shipper.may(Permission.APPEND, "a" * 1_000_000)
    assert not any(shipper.may(Permission.APPEND, f"x{number}") for number in range(10_000))
    assert len(shipper._known) < 10_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("append", "it must be PERMISSION:PATTERN, such as append:web.* or *:*"),
        ("append:", "it must be PERMISSION:PATTERN, such as append:web.* or *:*"),
        (
            "write:a",
            "its permission must be one of append, take, read, peek, describe, operate, admin, or * for all of",
        ),
        ("take:[ab]", "a pattern supports only * and ? and must not contain [ or ]"),
        ("take:a\n", "a pattern must have 1 to 255 printable characters"),
    ],
)
def test_parse_of_what_is_no_grant_says_why(text: str, problem: str) -> None:
    """The sentence says what is allowed."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        Grant.parse(text)


def test_standing_of_takes_the_whole_name_or_the_longest_pattern() -> None:
    """An identity has the roles of one pattern only, so that one of many can be shut out; without any it has none."""
    roles = {"all": [Grant.parse("*:*")], "none": []}
    policy = Policy(roles, {"*": ["all"], "nginx-*": ["none"], "nginx-admin": ["all", "none"]})
    allowed = [
        name
        for name in ("x", "nginx-1", "nginx-admin")
        if policy.entitlements_of(name).rights.may(Permission.TAKE, "a")
    ]
    assert allowed == ["x", "nginx-admin"]
    revoked = Policy(roles, {"nginx-*": ["all"], "nginx-**": ["all"], "nginx-1": ["none"], "nginx-": ["none"]})
    assert [
        name
        for name in ("nginx-1", "nginx-", "nginx-2")
        if revoked.entitlements_of(name).rights.may_everywhere(Permission.TAKE)
    ] == ["nginx-2"]
    assert not Policy(roles, {"a": ["all"]}).entitlements_of("b").rights.may(Permission.TAKE, "a")


def test_ambiguous_patterns_are_those_that_match_a_name_in_common() -> None:
    """Compared with all short names, for all short patterns."""
    marks = ["a", "b", "?", "*"]
    patterns = ["".join(chosen) for length in (1, 2, 3) for chosen in product(marks, repeat=length)]
    names = ["".join(chosen) for length in range(7) for chosen in product("ab", repeat=length)]
    matched = {pattern: {name for name in names if matches(pattern, name)} for pattern in patterns}
    expected = {
        frozenset((one, other))
        for one, other in product(patterns, repeat=2)
        if one != other
        and len(one) == len(other)
        and {*"*?"} & {*one}
        and {*"*?"} & {*other}
        and matched[one] & matched[other]
    }
    assert set(map(frozenset, ambiguous_patterns(patterns))) == expected
