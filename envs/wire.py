"""Observations, actions and infos as JSON, between a sandbox and whoever plays the environment in it.

Plain JSON passes through untouched, which is all that text environments need. Arrays, tuples and
bytes are tagged; anything else is refused by name, never turned into a string behind one's back.
numpy is used only when a value brings it along.
"""

from __future__ import annotations

import base64
import enum
import json
from typing import Any

TAG = "__rocknroll__"


class NotTransportable(TypeError):
    """A value that has no faithful form on the wire."""


def dumps(value: Any) -> bytes:
    """JSON of a value.

    Raises:
        NotTransportable: it holds something that cannot cross unchanged.
    """
    try:
        return json.dumps(_encode(value), allow_nan=True).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError) as error:
        raise NotTransportable(f"cannot send a value to the other side of the sandbox: {error}") from None


def loads(data: bytes) -> Any:
    """The value that `dumps` was given."""
    return json.loads(data.decode("utf-8", "surrogatepass"), object_hook=_decode)


def _encode(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (str, bool, int, float):
        return value
    if kind is list:
        return [_encode(item) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value) and TAG not in value:
            return {key: _encode(item) for key, item in value.items()}
        return {TAG: "dict", "items": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if kind is tuple:
        return {TAG: "tuple", "items": [_encode(item) for item in value]}
    if kind is bytes:
        return {TAG: "bytes", "data": base64.b64encode(value).decode()}
    return _encode_array(value)


def _encode_array(value: Any) -> Any:
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        data = base64.b64encode(value.tobytes()).decode()
        scalar = not hasattr(value, "__array_interface__") or type(value).__name__ != "ndarray"
        return {TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "scalar": scalar, "data": data}
    for plain in (str, int, float):
        if isinstance(value, plain):
            # StrEnum and the like mean their value.
            return plain(value.value if isinstance(value, enum.Enum) else value)
    raise NotTransportable(
        f"a {type(value).__module__}.{type(value).__qualname__} cannot leave the sandbox: {value!r:.200}"
    )


def _decode(value: dict[str, Any]) -> Any:
    kind = value.get(TAG)
    if kind is None:
        return value
    if kind == "dict":
        return dict(value["items"])
    if kind == "tuple":
        return tuple(value["items"])
    if kind == "bytes":
        return base64.b64decode(value["data"])
    import numpy

    array = numpy.frombuffer(base64.b64decode(value["data"]), dtype=numpy.dtype(value["dtype"]))
    shaped = array.reshape(value["shape"])
    return shaped[()] if value["scalar"] else shaped.copy()
