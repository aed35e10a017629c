"""What crosses the boundary of a sandbox comes out as it went in, or not at all."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocknroll.envs import space_wire
from rocknroll.envs.wire import TAG, NotTransportable, dumps, loads

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.just(TAG), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(values)
def test_plain_values_survive(value: Any) -> None:
    again = loads(dumps(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int8).reshape(2, 3), np.zeros((0, 2)), np.array(2.5)])
def test_arrays_keep_shape_and_type_and_can_be_written(array: np.ndarray[Any, Any]) -> None:
    again = loads(dumps({"x": array}))["x"]
    assert (again.dtype, again.shape, again.flags.writeable) == (array.dtype, array.shape, True)
    assert (again == array).all()


def test_numpy_scalars_and_enumerations_keep_their_value() -> None:
    class Colour(StrEnum):
        RED = "red"

    again = loads(dumps([np.float32(0.5), np.bool_(True), Colour.RED]))
    assert again == [0.5, True, "red"]
    assert isinstance(again[0], np.float32)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), lambda: None])
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(NotTransportable):
        dumps({"info": value})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(10, charset="ab"),
        spaces.Discrete(4, start=1),
        spaces.Box(-1.0, np.array([1.0, 2.0]), dtype=np.float64),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_survive(space: spaces.Space[Any]) -> None:
    assert space_wire.decode(loads(dumps(space_wire.encode(space)))) == space
