"""What a container's first process does before it becomes the agent.

`docker_boot.py PROGRAM CONFIG LOG USER [TEMPLATE WORKDIR]`, for any Python 3: it must be able to say that an image's
Python is too old. What the interpreter prints goes to a file of limited size whose descriptor no command inherits.
"""

import os
import signal
import sys

NEEDED = (3, 9)
LOG_CHARS = 1 << 16
REFUSED = 78
"""Exit code of what would end the same way next time (EX_CONFIG)."""


class Log:
    """Standard error for this interpreter alone: commands inherit descriptor 2, which leads nowhere."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", 1, encoding="utf-8", errors="backslashreplace")
        self._left = LOG_CHARS

    def write(self, text: str) -> int:
        self._file.write(text[: self._left])
        self._left = max(0, self._left - len(text))
        return len(text)

    def flush(self) -> None:
        self._file.flush()


def unpack(archive: str, workdir: str, user: str) -> None:
    """Put the template into the memory-backed working directory, as the user it will belong to."""
    import tarfile

    # Opened first: only this process may read it. The child gives up everything else before it writes.
    with open(archive, "rb") as file:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if user != "root":
                    uid, _, gid = user.partition(":")
                    os.setgroups([])
                    os.setgid(int(gid))
                    os.setuid(int(uid))
                with tarfile.open(fileobj=file) as members:
                    if hasattr(tarfile, "fully_trusted_filter"):
                        members.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
                    members.extractall(workdir)
                status = 0
            except OSError as error:
                sys.stderr.write("the template does not go into {}: {}\n".format(workdir, error))
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            sys.exit(REFUSED)


def main() -> None:
    """Prepare, then run the agent in this very process: it is to be the one that nothing inside can kill."""
    # The one signal that Python handles by ending. A handler, for what is ignored stays ignored in commands.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    program, config, log, user = sys.argv[1:5]
    sys.stderr = Log(log)
    if sys.version_info < NEEDED:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write("the image's python3 is {}, the agent needs {}.{} or newer\n".format(found, *NEEDED))
        sys.exit(REFUSED)
    if len(sys.argv) > 5:
        unpack(sys.argv[5], sys.argv[6], user)
    sys.argv = [program, config]
    program = os.path.join(program, "__main__.py")
    with open(program, "rb") as file:
        code = compile(file.read(), program, "exec", dont_inherit=True)
    namespace = sys.modules["__main__"].__dict__
    namespace["__file__"] = program
    exec(code, namespace)


if __name__ == "__main__":
    main()
