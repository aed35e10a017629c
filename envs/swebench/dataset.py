"""The instances of a data set: the shipped one, a file's, or the hub's."""

from __future__ import annotations

from collections.abc import Mapping

from rocknroll.envs.rows import load_rows
from rocknroll.envs.swebench.config import MINI_SWE
from rocknroll.envs.swebench.instance import Instance, instances_of
from rocknroll.envs.swebench.mini.rows import mini_rows


def load_instances(source: str, split: str = "test") -> tuple[list[Instance], Mapping[str, str]]:
    """The instances, and what is wrong with the other rows, by the rows' names.

    Args:
        source: `mini-swe`, or as in `rows.load_rows`.

    Raises:
        EnvDataError: there is no such data set.
    """
    if source == MINI_SWE:
        return instances_of((row["instance_id"], row) for row in mini_rows())
    return instances_of(load_rows(source, split))
