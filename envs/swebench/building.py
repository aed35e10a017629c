"""Images of instances that bring their files along, so that other tools can run them: the official harness, for one."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from pathlib import Path

import docker
from docker.errors import NotFound

from rocknroll.envs.swebench.cleaning import REPOSITORY
from rocknroll.envs.swebench.grading.script import WORKDIR
from rocknroll.envs.swebench.images import image_names
from rocknroll.envs.swebench.instance import Instance, RowError
from rocknroll.envs.swebench.mini.history import make_repository
from rocknroll.envs.swebench.tools import tools_folder

LIBRARIES = "/usr/local/lib/rocknroll-tools"
"""Where pytest is inside."""


def build_image(client: docker.APIClient, instance: Instance, base: str) -> str:
    """Make the image of an instance under its name, upon one with Python, git and bash; returns the name.

    Raises:
        RowError: it has no `tree`, or another one than its base commit's.
        docker.errors.APIError: the daemon refuses.
    """
    if instance.tree is None:
        raise RowError("it has no `tree` that an image could be made from")
    name = image_names(instance)[0]
    made = client.create_container(base, ["true"])["Id"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            commit = make_repository(instance.tree, Path(folder))
            if commit != instance.base_commit:
                raise RowError(f"its tree makes the commit {commit} and not its base_commit {instance.base_commit}")
            client.put_archive(made, "/", _packed(Path(folder), WORKDIR.lstrip("/")))
        client.put_archive(made, "/", _packed(tools_folder(), LIBRARIES.lstrip("/")))
        repository, _, tag = name.rpartition(":")
        settings = {"Env": [f"PYTHONPATH={LIBRARIES}", "PYTHONDONTWRITEBYTECODE=1"], "WorkingDir": WORKDIR}
        client.commit(made, repository, tag, conf=settings)
    finally:
        client.remove_container(made, force=True)
    return name


def image_with_tools(client: docker.APIClient, image: str) -> str:
    """A copy of an image with pytest in it, made once; returns its tag.

    Raises:
        docker.errors.NotFound: the image is not on this machine.
    """
    tools = tools_folder()
    key = hashlib.sha256(f"{client.inspect_image(image)['Id']} {tools.name}".encode()).hexdigest()[:16]
    tag = f"{REPOSITORY}:tools-{key}"
    try:
        client.inspect_image(tag)
        return tag
    except NotFound:
        made = client.create_container(image, ["true"])["Id"]
    try:
        client.put_archive(made, "/", _packed(tools, LIBRARIES.lstrip("/")))
        client.commit(made, REPOSITORY, tag.partition(":")[2])
    finally:
        client.remove_container(made, force=True)
    return tag


def _packed(folder: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder, name, filter=_owned_by_root)
    return buffer.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o755 if member.isdir() else 0o644
    return member
