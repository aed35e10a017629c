"""Images: the one that `rock image build` makes, layers that hold a template, snapshots of sandboxes.

Functions of a client that block; callers run them in threads. Nothing here pulls an image unasked, but for the base of
`build_image`, which the daemon fetches when it is not on this machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import NotFound

from rocknroll.sandbox.errors import ImageNotFound, SandboxLost, SpecInvalid, StartFailed
from rocknroll.sandbox.runtimes.docker_options import LABEL, owner
from rocknroll.sandbox.spec import DEFAULT_IMAGE, SandboxSpec

DEFAULT_BASE = "python:3.11-slim-bookworm"
TEMPLATE_REPOSITORY = "rocknroll-template"
MADE_BY = LABEL + "image"
"""Label of images: `build`, `template` or `snapshot`."""
_DOCKERFILE = Path(__file__).resolve().parent.parent / "image" / "Dockerfile"
_INSTANCE_LABELS = ("fleet", "instance", "spec", "owner", "namespace", "folder")


@dataclass(frozen=True)
class Image:
    """An image that this package made, as `rock image list` shows it."""

    id: str
    tags: tuple[str, ...]
    made_by: str
    """`build`, `template` or `snapshot`."""
    size_bytes: int
    """With the layers that it shares with others."""
    created: float
    """Seconds since 1970."""


def build_image(
    client: docker.APIClient,
    tag: str = DEFAULT_IMAGE,
    base: str = DEFAULT_BASE,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Build the sandbox image upon `base`; returns its id. A base that is here with python3 and git needs no network.

    Raises:
        ImageNotFound: the base is neither here nor to be had.
        StartFailed: a step of the build failed; the text has the last lines.
    """
    lines: list[str] = []
    with _DOCKERFILE.open("rb") as file:
        for part in client.build(
            fileobj=file,
            tag=tag,
            buildargs={"BASE": base},
            labels={MADE_BY: "build"},
            rm=True,
            forcerm=True,
            decode=True,
        ):
            if "error" in part:
                raise _build_failed(str(part["error"]).strip(), base, lines)
            line = str(part.get("stream") or part.get("status") or "").rstrip()
            if line:
                lines.append(line)
                progress(line)
    return str(client.inspect_image(tag)["Id"])


def _build_failed(error: str, base: str, lines: list[str]) -> StartFailed:
    absent = ("pull access denied", "manifest unknown", "not found: manifest", "lookup ", "dial tcp", "Client.Timeout")
    if any(part in error for part in absent) and not any(line.startswith("Step 3") for line in lines):
        return ImageNotFound(
            f"the base image {base} is not on this machine and could not be fetched: {error}; "
            "`rock image build --base IMAGE` takes any image that is here"
        )
    return StartFailed("the image could not be built: " + "\n".join([error, *lines[-10:]]), permanent=True)


def list_images(client: docker.APIClient) -> list[Image]:
    """Images that this package made on this machine, newest first."""
    found = client.images(filters={"label": MADE_BY})
    images = [
        Image(
            id=str(each["Id"]),
            tags=tuple(tag for tag in each.get("RepoTags") or () if tag != "<none>:<none>"),
            made_by=str(each["Labels"][MADE_BY]),
            size_bytes=int(each["Size"]),
            created=float(each["Created"]),
        )
        for each in found
    ]
    return sorted(images, key=lambda image: image.created, reverse=True)


def all_names(client: docker.APIClient) -> frozenset[str]:
    """What all images of this machine are called: tags, digests, ids."""
    found = client.images()
    return frozenset(
        name for each in found for name in (each["Id"], *(each["RepoTags"] or ()), *(each["RepoDigests"] or ()))
    )


def inspect(client: docker.APIClient, spec: SandboxSpec) -> Mapping[str, Any]:
    """What the daemon says of the specification's image.

    Raises:
        SpecInvalid: it names none. ImageNotFound: it is not on this machine.
    """
    if not spec.image:
        raise SpecInvalid(
            f"image: a sandbox in Docker needs one; `rock image build` makes {DEFAULT_IMAGE}, `docker pull` gets others"
        )
    found: Mapping[str, Any] = client.inspect_image(spec.image)
    return found


def write_template(spec: SandboxSpec, file: IO[bytes]) -> str:
    """Write the template as a tar of the working directory's content, owned by the sandbox's user; returns its hash.

    Raises:
        SpecInvalid: there is no such folder, or it does not fit into `resources.work_bytes`.
    """
    assert spec.template is not None
    root = spec.template.absolute()
    if not root.is_dir():
        raise SpecInvalid(f"template: {root} is not a folder on this machine")
    uid, gid = owner(spec)

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
        member.mtime = int(member.mtime)
        return member

    content_bytes = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder, names, files in os.walk(root):
            names.sort()
            for name in sorted([*names, *files]):
                path = Path(folder, name)
                archive.add(path, arcname=path.relative_to(root).as_posix(), recursive=False, filter=owned)
                content_bytes += path.lstat().st_size
    if not spec.writable_root and content_bytes > spec.resources.work_bytes:
        raise SpecInvalid(
            f"template: {root} has {content_bytes} bytes, the memory-backed {spec.workdir} holds "
            f"{spec.resources.work_bytes}; raise resources.work_bytes, or set writable_root"
        )
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def layered(client: docker.APIClient, spec: SandboxSpec, image: Mapping[str, Any], archive: Path | None) -> str:
    """The tag of an image whose working directory belongs to the sandbox's user and holds the template.

    Made once for every image, user and content, and kept: later fleets find it by its tag.
    """
    content = b""
    if archive is not None:
        with archive.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
    key = hashlib.sha256(b"\0".join([image["Id"].encode(), spec.workdir.encode(), spec.user.encode(), content]))
    tag = key.hexdigest()[:16]
    name = f"{TEMPLATE_REPOSITORY}:{tag}"
    try:
        client.inspect_image(name)
        return name
    except NotFound:
        config = {"Image": image["Id"], "Entrypoint": ["-"], "Labels": {MADE_BY: "template"}}
        made = client.create_container_from_config(config, f"{TEMPLATE_REPOSITORY}-{secrets.token_hex(6)}")["Id"]
    try:
        client.put_archive(made, "/", _folder_entry(spec))
        if archive is not None:
            with archive.open("rb") as file:
                client.put_archive(made, spec.workdir, file)
        _commit(client, made, TEMPLATE_REPOSITORY, tag, image, "template")
    finally:
        client.remove_container(made, force=True, v=True)
    return name


def _folder_entry(spec: SandboxSpec) -> bytes:
    """A tar with nothing but the working directory, which Docker would make as root's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(spec.workdir.lstrip("/"))
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        entry.uid, entry.gid = owner(spec)
        archive.addfile(entry)
    return buffer.getvalue()


def snapshot(client: docker.APIClient, container: str, tag: str) -> str:
    """The container's file system as an image; returns its id. It stands still meanwhile. Mounts are not in it.

    Raises:
        SpecInvalid: its root is read-only. SandboxLost: it is gone.
    """
    try:
        found = client.inspect_container(container)
    except NotFound:
        raise SandboxLost(f"there is no container {container} any more") from None
    if found["HostConfig"]["ReadonlyRootfs"]:
        raise SpecInvalid("a snapshot needs writable_root: what this sandbox writes is in memory, and in no image")
    repository, _, version = tag.rpartition(":") if ":" in tag.rpartition("/")[2] else (tag, "", "latest")
    base = client.inspect_image(found["Image"])
    return _commit(client, container, repository, version, base, "snapshot")


def _commit(
    client: docker.APIClient, container: str, repository: str, tag: str, base: Mapping[str, Any], made_by: str
) -> str:
    """Commit, giving the image its base's configuration back, for a commit takes the container's over.

    A container of such an image that somebody runs must not carry our labels: they mark what may be removed.
    """
    was = base["Config"]
    config = {
        "Labels": {**{LABEL + name: "" for name in _INSTANCE_LABELS}, MADE_BY: made_by},
        "Entrypoint": was.get("Entrypoint") or [],
        "Cmd": was.get("Cmd") or [],
        "User": was.get("User") or "0:0",
        "WorkingDir": was.get("WorkingDir") or "/",
        "StopSignal": was.get("StopSignal") or "SIGTERM",
        "Healthcheck": was.get("Healthcheck"),
    }
    return str(client.commit(container, repository, tag, conf=config)["Id"])
