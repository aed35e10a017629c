"""The machines that sandboxes live on: this one, or those of a Ray cluster.

Several are a `Runtime` of their own kind (`runtimes/ray.py`), which starts each instance on a node of its choice and
leads the fleet's channel there. Nothing above the runtime differs: records, listings and events carry the node.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocknroll.sandbox.cluster import ClusterChoice
    from rocknroll.sandbox.runtimes.ray import RayRuntime


def this_node() -> str:
    """The name of this machine among nodes."""
    return os.uname().nodename


def cluster_runtime(choice: ClusterChoice) -> RayRuntime:
    """A runtime on the nodes of a cluster, not yet open.

    Raises:
        ClusterUnavailable: Ray is not installed.
    """
    from rocknroll.sandbox.cluster import check_installed

    check_installed(choice)
    from rocknroll.sandbox.runtimes.ray import RayRuntime

    return RayRuntime(choice)
