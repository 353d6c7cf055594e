import pytest

from millrace_client import BadArgumentError, Consumer, Producer
from millrace_client._settings import check_endpoints


def test_check_endpoints_takes_one_or_several() -> None:
    """Duplicates are dropped; gRPC's own schemes are accepted."""
    assert check_endpoints("a:1") == ("a:1",)
    assert check_endpoints(["a:1", "unix:/run/b", "[::1]:7070", "a:1"]) == ("a:1", "unix:/run/b", "[::1]:7070")


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ([], "is empty"),
        ("", "'' has no port"),
        (["a:1", "b"], "'b' has no port; write host:port"),
        ("[::1]", "no port"),
    ],
)
def test_check_endpoints_of_nonsense_says_why(endpoints: str | list[str], message: str) -> None:
    """Otherwise a producer or a consumer would wait for a server that does not exist."""
    with pytest.raises(BadArgumentError, match=message):
        check_endpoints(endpoints)
    with pytest.raises(BadArgumentError, match=message):
        Producer(endpoints, "orders")
    with pytest.raises(BadArgumentError, match=message):
        Consumer(endpoints, "orders")
