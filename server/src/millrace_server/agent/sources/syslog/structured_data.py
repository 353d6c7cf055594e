"""RFC 5424's structured data, as JSON."""

import json
import re

_NAME = rb'[^\s=\]"]++'
_VALUE = rb'(?:[^"\\]++|\\.)*+'
_ELEMENT = rb"\[" + _NAME + rb"(?: ++" + _NAME + rb'="' + _VALUE + rb'")*+ *+\]'

STRUCTURED_DATA_PATTERN = rb"-|(?:" + _ELEMENT + rb")++"
"""All elements, or a dash for none."""

_ELEMENT_PARTS = re.compile(rb"\[(" + _NAME + rb")((?: ++" + _NAME + rb'="' + _VALUE + rb'")*+) *+\]', re.DOTALL)
_PARAMETER = re.compile(rb"(" + _NAME + rb')="(' + _VALUE + rb')"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def structured_data_json(text: bytes) -> str | None:
    """A JSON object: for each element's id an object of its parameters; None for a dash.

    The value of a parameter that comes several times is an array.
    """
    if text == b"-":
        return None
    elements: dict[str, dict[str, str | list[str]]] = {}
    for name, parameters in _ELEMENT_PARTS.findall(text):
        element = elements.setdefault(name.decode(errors="replace"), {})
        for key, value in _PARAMETER.findall(parameters):
            decoded = value.decode(errors="replace")
            _add(element, key.decode(errors="replace"), _ESCAPED.sub(r"\1", decoded) if "\\" in decoded else decoded)
    return _ENCODER.encode(elements)


def _add(element: dict[str, str | list[str]], key: str, value: str) -> None:
    known = element.get(key)
    if known is None:
        element[key] = value
    elif isinstance(known, list):
        known.append(value)
    else:
        element[key] = [known, value]
