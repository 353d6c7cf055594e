import itertools
import re

import pytest

from millrace_server.channels.ownership import Ownership
from millrace_server.channels.ownership_stages import Stage

_LEGAL = set(re.findall(r"^    (\w+) -> (\w+) ", Stage.__doc__ or "", re.MULTILINE))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Stage, Stage)))
def test_move_is_possible_only_as_documented(source: Stage, target: Stage) -> None:
    """Any other is a bug."""
    owned = Ownership.__new__(Ownership)
    owned.stage = source
    if (source.name, target.name) in _LEGAL:
        owned._move(target)
        assert owned.stage is target
    else:
        with pytest.raises(AssertionError):
            owned._move(target)
