"""Gymnasium spaces as JSON, so that a wrapper outside a sandbox has the spaces of the environment inside."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces

from rocknroll.envs.wire import NotTransportable


def encode(space: Any) -> dict[str, Any]:
    """A JSON-able description (see `wire.dumps` for the arrays in it).

    Raises:
        NotTransportable: the space is of another kind than the fundamental ones, Tuple and Dict.
    """
    match space:
        case spaces.Text():
            charset = "".join(sorted(space.character_set))
            return {"kind": "Text", "min_length": space.min_length, "max_length": space.max_length, "charset": charset}
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": space.dtype.str}
        case spaces.Box():
            return {"kind": "Box", "low": space.low, "high": space.high, "dtype": space.dtype.str}
        case spaces.MultiDiscrete():
            fields = {"nvec": space.nvec, "start": space.start, "dtype": space.dtype.str}
            return {"kind": "MultiDiscrete", **fields}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [encode(part) for part in space.spaces]}
        case spaces.Dict():
            return {"kind": "Dict", "spaces": [[name, encode(part)] for name, part in space.spaces.items()]}
        case _:
            raise NotTransportable(f"a space of type {type(space).__name__} cannot be described outside its sandbox")


def decode(description: dict[str, Any]) -> spaces.Space[Any]:
    """The space that `encode` described.

    Raises:
        NotTransportable: it could not be described.
    """
    import numpy

    if "text" in description:
        raise NotTransportable(f"the space {description['text']} cannot be described outside its sandbox")

    fields = dict(description)
    kind = fields.pop("kind")
    if "dtype" in fields:
        fields["dtype"] = numpy.dtype(fields["dtype"]).type
    if kind == "Tuple":
        return spaces.Tuple([decode(part) for part in fields["spaces"]])
    if kind == "Dict":
        return spaces.Dict({name: decode(part) for name, part in fields["spaces"]})
    space: spaces.Space[Any] = getattr(spaces, kind)(**fields)
    return space
