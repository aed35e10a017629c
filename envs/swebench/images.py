"""Names of the images that instances run in, as they are published and as the official harness builds them."""

from __future__ import annotations

import platform

from rocknroll.envs.swebench.instance import Instance

NAMESPACE = "swebench"
"""Of the published images."""


def image_names(instance: Instance, namespace: str = NAMESPACE, architecture: str = "") -> tuple[str, ...]:
    """Where the image of an instance may be, the most likely first.

    The row's own name counts alone. Published names are in lower case, with `_1776_` for `__`, which registries
    refuse; images that the official harness builds on the spot have no namespace and keep the `__`.

    Args:
        architecture: `x86_64` or `arm64`; this machine's unless given.
    """
    if instance.image:
        return (instance.image if ":" in instance.image.rpartition("/")[2] else f"{instance.image}:latest",)
    architecture = architecture or ("arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64")
    local = f"sweb.eval.{architecture}.{instance.id.lower()}:latest"
    return (f"{namespace}/{local.replace('__', '_1776_')}", local)
