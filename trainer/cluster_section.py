"""Which cluster a run works on. Imports nothing heavy."""

from __future__ import annotations

from rocknroll.trainer.section import Section


class ClusterSection(Section):
    address: str | None = None
    """A Ray cluster: `host:port`, `auto` or `local` (this machine alone). Unless given, the one of `$RAY_ADDRESS`, else
    the one that `ray start` began here, else this machine alone."""
