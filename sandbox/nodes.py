"""The machines that sandboxes live on.

One today: this one. Several hosts are a `Runtime` of their own kind, which starts each instance on a node of its
choice; its instances say which node that is, and have their agents' sockets brought here. Nothing above the runtime
changes for it: record, listings and events carry the node of every sandbox already.
"""

from __future__ import annotations

import os


def this_node() -> str:
    """The name of this machine among nodes."""
    return os.uname().nodename
