"""What a session tells its shell: text for bash, and for a POSIX shell where there is no bash.

The shell reads one line per run from a pipe. That line reads the command from a memory file and
evaluates it at the top level (in a function, `declare` would be local), so that no quote or heredoc
in the command can swallow anything else. How it ended goes to a descriptor of its own, with a nonce
that only that line carried: nothing that a command prints, anywhere, is taken for it. Afterwards,
and when the shell ends against its will, its state is written down, by builtins alone, for what it
starts is hunted meanwhile: another shell goes on from it.
"""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STOP_SIGNAL = 42
"""A real-time signal that nobody else uses: write the state down and end, before the next command begins."""
COMPLETE = b"# complete\n"
"""End of a state that is whole."""


class Numbers:
    """The shell's descriptors: the command's text, the report, the state after a run, the state at the end."""

    def __init__(self, highest: int) -> None:
        self.text, self.report, self.kept, self.last = range(highest - 3, highest + 1)


class Bash:
    """Keeps variables with their attributes, functions, aliases, traps, options, the positional parameters."""

    name = "bash"

    def __init__(self, path: str) -> None:
        self.argv = [path, "--norc", "--noprofile"]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Far from the numbers that people use, and below the limit.
        self.numbers = Numbers(250 if limit < 0 else min(250, limit - 2))

    def _state(self, number: int) -> str:
        return (
            '{ \\builtin printf "builtin cd -- %q\\n" "$PWD"; \\builtin declare -p; \\builtin declare -f; '
            "\\builtin declare -F; \\builtin alias -p; \\builtin trap -p; \\builtin umask -p; "
            '\\builtin printf "builtin set --"; [ $# = 0 ] || \\builtin printf " %q" "$@"; \\builtin echo; '
            f'\\builtin shopt -p; \\builtin set +o; \\builtin printf "# complete\\n"; }} >/proc/self/fd/{number}'
        )

    def restorable(self, state: bytes) -> bytes:
        """What another shell can read of a state that was written down."""
        return state

    def opening(self, nonce: str, state: int | None) -> str:
        """For a new shell; `state`: of `numbers`, where it goes on from."""
        report = f">&{self.numbers.report}"
        at_end = (
            f"{{ __rock_s=$?; {self._state(self.numbers.last)}; "
            f'\\builtin printf "%s %s %s\\0" $__rock_k $__rock_n $__rock_s {report}; }} 2>/dev/null'
        )
        at_stop = f"{{ {self._state(self.numbers.last)}; \\builtin kill -KILL $$; }} 2>/dev/null"
        before = "" if state is None else f". /proc/self/fd/{state} >/dev/null 2>&1\n"
        return (
            f"{before}\\builtin trap '{at_end}' EXIT\n\\builtin trap '{at_stop}' {STOP_SIGNAL}\n"
            "exit() { __rock_s=$?; [ $BASH_SUBSHELL = 0 ] && __rock_k=exit; \\builtin exit "
            '"${1-$__rock_s}"; }\n'
            f"__rock_status() {{ return $1; }}\n__rock_s=${{__rock_s:-0}} __rock_n=${{__rock_n:-none}} __rock_k=fail\n"
            f'{{ {self._state(self.numbers.kept)}; \\builtin printf "ready {nonce} 0\\0" {report}; }} 2>/dev/null\n'
        )

    def line(self, mark: int, nonce: str) -> str:
        """For one run. It begins with a line of its own, because bash may stumble after a syntax error."""
        run, done = _evaluate("\\builtin eval"), f">&{self.numbers.report}; {self._state(self.numbers.kept)}"
        return (
            f"\n{{ __rock_n={nonce}; \\ulimit -S -x {mark}; "
            f'IFS= \\builtin read -r -d "" __rock_c <&{self.numbers.text}; }} 2>/dev/null; {run}'
            f'{{ __rock_s=$?; \\builtin printf "done %s %s\\0" $__rock_n $__rock_s {done}; }} 2>/dev/null\n'
        )


class Posix:
    """Keeps variables, options and the folder; its functions and aliases are lost with a shell that has to be ended."""

    name = "sh"

    def __init__(self, path: str) -> None:
        self.argv = [path]
        self.numbers = Numbers(9)

    def _state(self, number: int) -> str:
        return (
            '{ set; export -p; printf "umask "; umask; set +o; '
            "printf 'cd -- \"$PWD\"\\n# complete\\n'; } "
            f">/proc/self/fd/{number}"
        )

    def restorable(self, state: bytes) -> bytes:
        """PPID is read-only in some shells, and a failed assignment would end the one that goes on."""
        return b"\n".join(line for line in state.split(b"\n") if not line.startswith((b"PPID=", b"_=")))

    def opening(self, nonce: str, state: int | None) -> str:
        report = f">&{self.numbers.report}"
        before = "" if state is None else f". /proc/self/fd/{state} >/dev/null 2>&1\n"
        return (
            f"{before}__rock_end() {{ __rock_s=$?; {{ {self._state(self.numbers.last)}; "
            f"printf '%s %s %s\\0' ${{__rock_x:-fail}} $__rock_n $__rock_s {report}; }} 2>/dev/null; }}\n"
            f"__rock_stop() {{ {{ {self._state(self.numbers.last)}; kill -KILL $$; }} 2>/dev/null; }}\n"
            '__rock_exit() { __rock_s=$?; __rock_x=exit; \\exit "${1-$__rock_s}"; }\nalias exit=__rock_exit\n'
            f"trap __rock_end EXIT\ntrap __rock_stop {STOP_SIGNAL}\n"
            "__rock_status() { return $1; }\n__rock_s=${__rock_s:-0}; __rock_n=${__rock_n:-none}\n"
            f"{{ {self._state(self.numbers.kept)}; printf 'ready {nonce} 0\\0' {report}; }} 2>/dev/null\n"
        )

    def line(self, mark: int, nonce: str) -> str:
        run, done = _evaluate("command eval"), f">&{self.numbers.report}; {self._state(self.numbers.kept)}"
        return (
            f"\n{{ __rock_n={nonce}; ulimit -S -w {mark}; __rock_c=$(cat <&{self.numbers.text}); }} 2>/dev/null; "
            f"{run}"
            f"{{ __rock_s=$?; printf 'done %s %s\\0' $__rock_n $__rock_s {done}; }} 2>/dev/null\n"
        )


def _evaluate(command: str) -> str:
    """Run the command, with `$?` as the run before left it: behind `||`, where `set -e` lets a failure pass."""
    run = f'{command} "$__rock_c" </dev/null'
    return (
        f"if {{ [ $__rock_s = 0 ]; }} 2>/dev/null; then {run}; "
        f"else {{ __rock_status $__rock_s; }} 2>/dev/null || {run}; fi; "
    )


def find(variables: Mapping[str, str]) -> Bash | Posix:
    """bash if the sandbox has it, else sh."""
    for folder in variables.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bash")
        if folder and os.access(path, os.X_OK):
            return Bash(path)
    return Posix("/bin/sh")
