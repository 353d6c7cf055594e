"""What a test has logged, apart from the lines of others: threads of former tests of its process log, too."""

import pytest


def messages_of(logger: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of one logger."""
    return [record.getMessage() for record in caplog.records if record.name == logger]
