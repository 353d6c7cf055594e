"""Hypothesis strategies for events in rows."""

from collections.abc import Sequence

from hypothesis import strategies as st

Row = tuple[dict[str, str], bytes]

# Few keys, so that events share them; values that take 1 to 4 bytes a character, and none at all.
_KEYS = st.sampled_from(["", "host", "größe", "鍵", "id"])
_VALUES = st.text(alphabet=["a", "é", "鍵", "🜂", "\0"], max_size=4)
_BODIES = st.binary(max_size=12)


def rows(*, min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[Sequence[Row]]:
    """Some events; often some of them share a header's key, or its value too."""
    return st.lists(
        st.tuples(st.dictionaries(_KEYS, _VALUES, max_size=4), _BODIES), min_size=min_size, max_size=max_size
    )
