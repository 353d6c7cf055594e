"""Permissions on channels, which roles grant by patterns of names."""

import enum
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import NamedTuple

from millrace_server.access.quotas import UNBOUNDED, Quota

ANYTHING = "*"
"""Stands for all permissions, and as a pattern for all names."""

PATTERN_LENGTH_MAX = 255

_KNOWN_MAX = 4_096
_WILD = frozenset("*?")


class Permission(enum.StrEnum):
    """A right on a channel."""

    APPEND = "append"
    TAKE = "take"
    READ = "read"
    PEEK = "peek"
    DESCRIBE = "describe"
    OPERATE = "operate"
    ADMIN = "admin"


class Grant(NamedTuple):
    """Permissions on the channels whose names match a pattern."""

    permissions: frozenset[Permission]
    pattern: str

    @classmethod
    def parse(cls, text: str) -> "Grant":
        """Parses `PERMISSION:PATTERN`; raises ValueError, with what is wrong, if that is not valid."""
        name, colon, pattern = text.partition(":")
        if not colon or not pattern:
            raise ValueError("it must be PERMISSION:PATTERN, such as append:web.* or *:*")
        check_pattern(pattern)
        if name == ANYTHING:
            return cls(frozenset(Permission), pattern)
        if name not in set(Permission):
            raise ValueError(f"its permission must be one of {', '.join(Permission)}, or * for all of them")
        return cls(frozenset({Permission(name)}), pattern)


def check_pattern(pattern: str) -> None:
    """Raises ValueError if a pattern is invalid. `*` matches any text, including dots, and `?` one character."""
    if not 0 < len(pattern) <= PATTERN_LENGTH_MAX or not pattern.isprintable():
        raise ValueError(f"a pattern must have 1 to {PATTERN_LENGTH_MAX} printable characters")
    if set("[]") & set(pattern):
        raise ValueError("a pattern supports only * and ? and must not contain [ or ]")


def matches(pattern: str, name: str) -> bool:
    """Whether a whole name matches a pattern."""
    return _compiled(pattern).fullmatch(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Patterns have no brackets, so fnmatch gives only * and ? a meaning.
    return re.compile(fnmatch.translate(pattern))


class Rights:
    """What one identity may do."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._patterns: dict[Permission, list[str]] = {permission: [] for permission in Permission}
        for grant in grants:
            for permission in grant.permissions:
                self._patterns[permission].append(grant.pattern)
        self._known: dict[tuple[Permission, str], bool] = {}

    def may(self, permission: Permission, channel: str) -> bool:
        """Whether a role allows this on a channel, which need not exist."""
        if (known := self._known.get((permission, channel))) is not None:
            return known
        # Callers can use names of any length, which must not fill the cache; no channel has such a long name.
        if len(channel) > PATTERN_LENGTH_MAX:
            return self.may_everywhere(permission)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        is_allowed = any(matches(pattern, channel) for pattern in self._patterns[permission])
        self._known[permission, channel] = is_allowed
        return is_allowed

    def may_everywhere(self, permission: Permission) -> bool:
        """Whether a role allows this on all channels."""
        return ANYTHING in self._patterns[permission]


class Entitlements(NamedTuple):
    """What one identity may do, and how much."""

    rights: Rights
    quota: Quota


class Policy:
    """The roles and quotas of identities, by patterns of their names.

    An exact name takes precedence, so that a single identity can be excluded; otherwise the longest matching pattern
    applies.
    """

    def __init__(
        self,
        roles: Mapping[str, Iterable[Grant]],
        identities: Mapping[str, Iterable[str]],
        new_quota: Callable[[str], Quota] = lambda _: UNBOUNDED,
    ) -> None:
        """`new_quota` makes the quota of an identity that matches a pattern."""
        self._rights = {
            pattern: Rights(grant for role in names for grant in roles[role]) for pattern, names in identities.items()
        }
        self._new_quota = new_quota
        self._by_weight = sorted(self._rights, key=lambda pattern: (_is_plain(pattern), len(pattern)), reverse=True)
        self._known: dict[str, Entitlements] = {}

    def entitlements_of(self, identity: str) -> Entitlements:
        if (known := self._known.get(identity)) is not None:
            return known
        pattern = next((pattern for pattern in self._by_weight if matches(pattern, identity)), None)
        if pattern is None:
            return _NONE
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        entitlements = self._known[identity] = Entitlements(self._rights[pattern], self._new_quota(pattern))
        return entitlements

    def quotas(self) -> dict[str, Quota]:
        """Returns the quotas of identities that have called, by identity."""
        known = self._known.items()
        return {identity: found.quota for identity, found in known if found.quota is not UNBOUNDED}


_NONE = Entitlements(Rights(()), UNBOUNDED)


def ambiguous_patterns(patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the pairs of patterns with wildcards, of the same length, that match a name in common."""
    by_length: dict[int, list[str]] = {}
    for pattern in patterns:
        if not _is_plain(pattern):
            by_length.setdefault(len(pattern), []).append(pattern)
    for same in by_length.values():
        yield from (pair for pair in combinations(same, 2) if _have_common_name(*pair))


def _is_plain(pattern: str) -> bool:
    return _WILD.isdisjoint(pattern)


def _have_common_name(left: str, right: str) -> bool:
    """Whether a name matches both patterns."""
    # The positions in `right` that a name matching the part of `left` so far can have reached.
    reached = _after_stars({0}, right)
    for mark in left:
        if mark == "*":
            reached = set(range(min(reached, default=len(right) + 1), len(right) + 1))
            continue
        stepped = {place for place in reached if right[place : place + 1] == "*"}
        stepped |= {
            place + 1 for place in reached if place < len(right) and (right[place] in (mark, "?") or mark == "?")
        }
        reached = _after_stars(stepped, right)
    return len(right) in reached


def _after_stars(places: set[int], pattern: str) -> set[int]:
    found = set(places)
    for place in places:
        while pattern[place : place + 1] == "*":
            place += 1  # noqa: PLW2901 - walks over the stars
            found.add(place)
    return found
