"""Change one number of the objectives at a time and see whether their tests notice: `python tests/trainer/mutation.py`.

Each mutant lives in a fork of this process, in which one module is imported from changed source and
the tests that are to catch it run. Prints a line per mutant; ends with 1 when one survived.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis
import pytest

HERE = Path(__file__).parent
OBJECTIVES = HERE.parents[1] / "trainer" / "objectives"
PACKAGE = "rocknroll.trainer.objectives"
CAUGHT_BY = {
    "catalogue": ["losses"],
    "ratios": ["losses", "regularisers"],
    "losses": ["losses"],
    "regularisers": ["regularisers"],
    "mismatch": ["mismatch"],
    "aggregate": ["aggregate"],
    "advantages": ["advantages"],
    "gae": ["gae"],
    "diagnostics": ["diagnostics"],
    "disagreement": ["disagreement"],
}
"""Which tests (`test_objectives_<name>.py`) are to catch a change of a module."""
TESTS_FAILED, BROKEN = 1, (2, 3, 4)
"""pytest's exit codes: a test failed; the module or its tests could not even be imported or run."""


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """What was changed, and the changed source, for each number in it."""
    for index, node in enumerate(numbers(ast.parse(source))):
        tree = ast.parse(source)
        target = numbers(tree)[index]
        value = target.value
        assert isinstance(value, int | float)
        target.value = value + 1 if isinstance(value, int) else value * 1.5 or 1.0
        line = source.splitlines()[node.lineno - 1].strip()
        yield f"line {node.lineno}: {value} → {target.value} in `{line}`", ast.unparse(tree)


def numbers(tree: ast.AST) -> list[ast.Constant]:
    """In the order of the source."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    found = [node for node in constants if isinstance(node.value, int | float) and not isinstance(node.value, bool)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from changed source."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, f"<mutant of {fullname}>", "exec")


class FirstFailure:
    """A pytest plugin: one failure says enough, so none is shrunk or explained; the general comparisons, which a file
    begins with and which take longest, come last."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.reverse()
        quickly = hypothesis.settings(phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], database=None)
        hypothesis.settings.register_profile("first failure", quickly, deadline=None)
        hypothesis.settings.load_profile("first failure")


def caught(module: str, source: str) -> bool:
    """Whether the tests of `module` fail with `source` in its place."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            sys.meta_path.insert(0, Changed(f"{PACKAGE}.{module}", source))
            files = [str(HERE / f"test_objectives_{name}.py") for name in CAUGHT_BY[module]]
            options = ["-x", "-q", "-n0", "--assert=plain", "--tb=no", "-p", "no:cacheprovider"]
            code = int(pytest.main([*options, *files], plugins=[FirstFailure()]))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0 and code != TESTS_FAILED and code not in BROKEN:
        raise RuntimeError(f"a mutant of {module} ended with {code}: that says nothing about its tests")
    return code != 0


def main(modules: Sequence[str]) -> int:
    survivors = total = 0
    for module in modules or CAUGHT_BY:
        source = (OBJECTIVES / f"{module}.py").read_text(encoding="utf-8")
        if caught(module, ast.unparse(ast.parse(source))):
            raise SystemExit(f"the tests of {module} fail without any change")
        for what, changed in mutants(source):
            total += 1
            dead = caught(module, changed)
            survivors += not dead
            print(f"{'caught' if dead else 'SURVIVED'}  {module}, {what}", flush=True)
    print(f"{total - survivors} of {total} mutants caught")
    return int(survivors > 0)


if __name__ == "__main__":
    # Imported once, before the forks, because they take seconds; nothing of ours, which the forks import changed.
    import pydantic  # noqa: F401
    import torch
    import transformers.models.gpt2
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
