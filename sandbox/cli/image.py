"""`rock image`: the images that Docker sandboxes start from."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.connect import DryRunOption, SandboxArgument, StateOption, UrlOption, connect
from rocknroll.sandbox.cli.output import JsonOption, print_json

MIB = 1 << 20

TagOption = Annotated[str | None, typer.Option("--tag", "-t", help="Name of the image.")]


def build(
    tag: TagOption = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Image to build upon; one with python3 and git needs no network.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Build the image that sandboxes start from."""
    from rocknroll.sandbox.leftovers import ask_docker
    from rocknroll.sandbox.runtimes.docker_image import DEFAULT_BASE, build_image
    from rocknroll.sandbox.spec import DEFAULT_IMAGE

    tag, base = tag or DEFAULT_IMAGE, base or DEFAULT_BASE
    if dry_run:
        print(f"would build {tag} upon {base}")
        return
    image = ask_docker(build_image, tag, base, lambda line: print(line, file=sys.stderr))
    print_json({"image": image, "tag": tag}) if as_json else print(image)


def list_(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the images that rock made: builds, templates, snapshots."""
    from rocknroll.sandbox.leftovers import ask_docker
    from rocknroll.sandbox.runtimes.docker_image import list_images

    images = ask_docker(list_images)
    if as_json:
        print_json({"images": [asdict(image) for image in images]})
        return
    print(f"{'TAG':40}{'MADE BY':12}{'MIB':>8}  CREATED")
    for image in images:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(image.created))
        print(f"{', '.join(image.tags) or image.id[:19]:40}{image.made_by:12}{image.size_bytes / MIB:8.0f}  {created}")


def commit(
    sandbox: SandboxArgument,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="Name of the image.")],
    state: StateOption = None,
    url: UrlOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Snapshot a sandbox with `writable_root` into an image, from which others start warm."""
    with connect(state, url) as client:
        if dry_run:
            print(f"would commit {client.describe(sandbox)['id']} as {tag}")
            return
        image = client.commit(sandbox, tag)
    print_json({"image": image, "tag": tag}) if as_json else print(image)
