"""The generated docs/errors.md."""

import re

from millrace_client.errors import ERRORS_BY_REASON
from tools import generate_errors_page


def test_errors_page_read_as_tables_has_every_reason_once() -> None:
    """Whoever meets a reason finds it, with what it means and what to do."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", generate_errors_page.page(), re.MULTILINE)
    assert sorted(reason for reason, _ in rows) == sorted(ERRORS_BY_REASON)
    for reason, rest in rows:
        assert all(cell.strip() for cell in rest.split("|")), reason
