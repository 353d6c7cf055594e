import sys
from pathlib import Path

import pytest

from examples.access_log.local_query import QueryError, local_query
from tests.query_plan import query_plan


def test_kill_tells_whether_the_query_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had ended by itself was not, whenever that was seen."""
    with local_query(query_plan(tmp_path)) as query:
        assert query.kill()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with local_query(query_plan(tmp_path)) as query:
        with pytest.raises(QueryError, match="the query ended with 1"):
            query.landed()
        assert not query.kill()
