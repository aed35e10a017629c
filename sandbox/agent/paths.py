"""Finding what a path names without ever leaving the folders that may be touched.

Every part of a path is opened relative to the folder before it and never through a link; links are
read and their text is walked in the same way, `..` goes back along the way that was come. So no
exchange of a folder for a link while this goes on leads outside: what is opened was found, step by
step, below a root. (openat2 with RESOLVE_BENEATH refuses all absolute links, is missing in older
kernels and seccomp profiles, and Python has no name for it; one way that always works is better.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from .frames import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_LINKS = 40
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Place:
    """A name in an open folder. `folder` is a descriptor, valid inside `Roots.find` only; the name is no link then,
    and may be so a moment later: open it with O_NOFOLLOW. `name` is `.` for a root itself."""

    __slots__ = ("folder", "name")

    def __init__(self, folder: int, name: str) -> None:
        self.folder, self.name = folder, name


class Roots:
    """The folders that file operations may touch. A root that is a link is followed once, here."""

    def __init__(self, roots: Sequence[str], workdir: str) -> None:
        self._workdir = workdir
        self._roots = {
            os.path.normpath(root): os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for root in roots
        }
        self.filesystem = self._roots.get("/")
        """The root `/`, above which there is nothing to escape to."""

    @contextlib.contextmanager
    def find(self, path: str, make: bool = False, follow: bool = True) -> Iterator[Place]:
        """Where `path` is (relative ones start at the working directory), through links when `follow`.

        `make`: folders on the way that are missing are made.

        Raises:
            Refused: `path_escapes`, the path leads out of the roots.
            OSError: a part of it is missing, is no folder, or may not be entered.
        """
        walk = _Walk(self, path)
        try:
            yield walk.to_end(os.path.join(self._workdir, path), make, follow)
        finally:
            walk.close()

    def start(self, path: str) -> tuple[int, list[str]]:
        """The root that an absolute path lies in (the longest), and the parts below it.

        Raises:
            Refused: `path_escapes`, it lies in none.
        """
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for length in range(len(parts), -1, -1):
            root = "/" + "/".join(parts[:length])
            if root in self._roots:
                return self._roots[root], parts[length:]
        raise escapes(path)


class _Walk:
    def __init__(self, roots: Roots, path: str) -> None:
        self._roots, self._path = roots, path
        self._way: list[int] = []
        self._links = 0

    def close(self) -> None:
        for descriptor in self._way:
            os.close(descriptor)
        self._way.clear()

    def to_end(self, path: str, make: bool, follow: bool) -> Place:
        root, parts = self._roots.start(path)
        parts.reverse()
        while parts:
            name = parts.pop()
            here = self._way[-1] if self._way else root
            if name == "..":
                if self._way:
                    os.close(self._way.pop())
                elif root != self._roots.filesystem:
                    raise escapes(self._path)
                if not parts:
                    return Place(self._way[-1] if self._way else root, ".")
                continue
            last = not parts
            target = self._link(here, name) if not last or follow else None
            if target is not None:
                new = [part for part in target.split("/") if part not in ("", ".")]
                if target.startswith("/"):
                    self.close()
                    root, new = self._roots.start(target)
                parts += reversed(new)
                if not parts:
                    return Place(self._way[-1] if self._way else root, ".")
                continue
            if last:
                return Place(here, name)
            self._way.append(self._enter(here, name, make))
        return Place(root, ".")

    def _link(self, folder: int, name: str) -> str | None:
        try:
            target = os.readlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        return target

    def _enter(self, folder: int, name: str, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=folder)
        return os.open(name, FOLDER, dir_fd=folder)


def escapes(path: str) -> Refused:
    """The refusal of a path."""
    return Refused("path_escapes", f"{path} leads out of the folders of this sandbox that files may be touched in")


def open_regular(place: Place, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file, never through a link, and without waiting (a FIFO would).

    Raises:
        Refused: it is something else. OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(
            place.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode, dir_fd=place.folder
        )
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise Refused("file_failed", f"{place.name} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("file_failed", f"{place.name} is not a regular file")
    return descriptor
