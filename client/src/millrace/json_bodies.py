"""Bodies of events in JSON."""

from base64 import b64encode


def body_document(body: bytes) -> dict[str, str]:
    """Returns a body as a JSON field: `body`, or `body_base64` if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
