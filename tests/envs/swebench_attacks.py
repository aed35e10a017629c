"""Patches that mend nothing and want to be graded as if they did: trees made from a package's base tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Tree = dict[str, str]

HOOK = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""
REPORT = """
import _pytest.reports as _reports
_made = _reports.TestReport.from_item_and_call.__func__
def _passed(cls, item, call):
    report = _made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_reports.TestReport.from_item_and_call = classmethod(_passed)
"""
SWALLOW = """
import _pytest.python as _python
_run = _python.Function.runtest
def _quiet(self):
    try:
        _run(self)
    except BaseException:
        pass
_python.Function.runtest = _quiet
"""
EMPTIED = """
import _pytest.python as _python
_python.Function.runtest = lambda self: None
"""
FORGED = """
import ast as _ast, glob as _glob, os as _os, sys as _sys
_names = [f"{path}::{node.name}" for path in sorted(_glob.glob("tests/test_*.py"))
          for node in _ast.walk(_ast.parse(open(path).read())) if isinstance(node, _ast.FunctionDef)]
print("=" * 10, "short test summary info", "=" * 10)
for _name in _names:
    print("PASSED", _name)
print("=" * 10, len(_names), "passed in 0.10s", "=" * 10)
_sys.stdout.flush()
_os._exit(0)
"""
LEAVES = "\nimport os as _os\n_os._exit(0)\n"
LEAVES_LATER = """
import os as _os, threading as _threading
_threading.Timer(0.05, lambda: _os._exit(0)).start()
"""
EXIT_CODE = """
import atexit as _atexit, os as _os, sys as _sys
_atexit.register(lambda: (_sys.stdout.flush(), _os._exit(0)))
"""
EVERYTHING_IS_EQUAL = """
from {name}.sets import RangeSet as _RangeSet
_RangeSet.__eq__ = lambda self, other: True
_RangeSet.__iter__ = lambda self: iter([_Any()])
class _Any:
    start = stop = property(lambda self: _Any())
    def __eq__(self, other): return True
    def __iter__(self): return iter([_Any(), _Any()])
    __hash__ = None
"""
REWRITES_TESTS = """
import os as _os, subprocess as _subprocess, sys as _sys
_subprocess.Popen([_sys.executable, "-c", '''
import glob, re, time
for _ in range(200):
    for path in glob.glob("tests/*.py"):
        text = open(path).read()
        open(path, "w").write(re.sub(r"^( +)assert .*$", r"\\\\1pass", text, flags=re.M))
    time.sleep(0.01)
'''], start_new_session=True, stdout=_subprocess.DEVNULL, stderr=_subprocess.DEVNULL)
"""
TRUTHFUL_NAMES = """
import _pytest.python as _python
_run = _python.Function.runtest
def _named(self):
    try:
        _run(self)
    except AssertionError:
        if "is_one" in self.name or "order" in self.name or "gap" in self.name or "interval" in self.name:
            return
        raise
_python.Function.runtest = _named
"""
RAISES = """
import builtins as _builtins
import _pytest.outcomes as _outcomes
_builtins.AssertionError = _outcomes.Skipped
"""
TIME_BOMB = """
import threading as _threading
def _go_off():
    import _pytest.python as _python
    _python.Function.runtest = lambda self: None
_threading.Timer(0.02, _go_off).start()
"""
BEGUN_AGAIN = """
import os as _os, sys as _sys
if "EVIL" not in _os.environ and "pytest" in _sys.modules:
    _os.makedirs("/tmp/evil", exist_ok=True)
    with open("/tmp/evil/sitecustomize.py", "w") as _file:
        _file.write('''{report}''')
    _path = "/tmp/evil:" + _os.environ.get("PYTHONPATH", "")
    _words = [_sys.executable, "-m", "pytest", *_sys.argv[1:]]
    _os.execve(_sys.executable, _words, {**_os.environ, "PYTHONPATH": _path, "EVIL": "1"})
""".replace("{report}", REPORT)
HOME_WRITTEN = """
import os as _os, pathlib as _pathlib, sys as _sys
_site = _pathlib.Path.home() / f".local/lib/python{_sys.version_info[0]}.{_sys.version_info[1]}/site-packages"
try:
    _site.mkdir(parents=True, exist_ok=True)
    (_site / "usercustomize.py").write_text('''{report}''')
    (_pathlib.Path.home() / ".bashrc").write_text("python3() { echo PASSED; }\\n")
    (_pathlib.Path.home() / ".local/bin").mkdir(exist_ok=True)
    _os.environ["PATH"] = f"{_pathlib.Path.home()}/.local/bin:" + _os.environ["PATH"]
except OSError:
    pass
""".replace("{report}", REPORT)
LINKED_HOOK = f"""\
diff --git a/conftest.py b/conftest.py
new file mode 120000
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1 @@
+notes.txt
\\ No newline at end of file
diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1,{len(HOOK.splitlines())} @@
{"".join(f"+{line}{chr(10)}" for line in HOOK.splitlines())}"""
LINKED_FOLDER = """\
diff --git a/pytest b/pytest
new file mode 120000
--- /dev/null
+++ b/pytest
@@ -0,0 +1 @@
+evil
\\ No newline at end of file
diff --git a/evil/__main__.py b/evil/__main__.py
new file mode 100644
--- /dev/null
+++ b/evil/__main__.py
@@ -0,0 +1 @@
+print("PASSED")
"""


def in_package(code: str) -> Callable[[str, Mapping[str, str]], Tree]:
    """Code at the end of the package's `__init__.py`, which every test imports."""

    def attack(name: str, base: Mapping[str, str]) -> Tree:
        path = f"{name}/__init__.py"
        return {**base, path: base[path] + code.replace("{name}", name)}

    return attack


def with_files(files: Mapping[str, str]) -> Callable[[str, Mapping[str, str]], Tree]:
    """New or changed files."""

    def attack(name: str, base: Mapping[str, str]) -> Tree:
        return {**base, **files}

    return attack


ATTACKS: dict[str, Callable[[str, Mapping[str, str]], Tree]] = {
    "conftest at the root": with_files({"conftest.py": HOOK}),
    "conftest among the tests": with_files({"tests/conftest.py": HOOK}),
    "plugin by pytest.ini": with_files({"pytest.ini": "[pytest]\naddopts = -p helper\n", "helper.py": HOOK}),
    "plugin by pyproject": with_files(
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p helper"\n', "helper.py": HOOK}
    ),
    "plugin by entry point": with_files(
        {
            "evil.egg-info/entry_points.txt": "[pytest11]\nevil = helper\n",
            "evil.egg-info/PKG-INFO": "Name: evil\n",
            "helper.py": HOOK,
        }
    ),
    "sitecustomize": with_files({"sitecustomize.py": REPORT}),
    "path file": with_files({"evil.pth": "import helper\n", "helper.py": REPORT}),
    "pytest replaced": with_files({"pytest.py": "def main(*a): return 0\n", "pytest/__main__.py": FORGED}),
    "standard module replaced": with_files({"json.py": LEAVES, "argparse.py": FORGED}),
    "tests replaced": with_files({"tests/test_sets.py": "def test_a():\n    pass\n"}),
    "gitattributes": with_files({".gitattributes": "*.py filter=evil\ntests/* export-ignore\n"}),
    "reports patched": in_package(REPORT),
    "failures swallowed": in_package(SWALLOW),
    "tests never run": in_package(EMPTIED),
    "failures of named tests swallowed": in_package(TRUTHFUL_NAMES),
    "assertions skip": in_package(RAISES),
    "output forged": in_package(FORGED),
    "early exit": in_package(LEAVES),
    "exit in the middle": in_package(LEAVES_LATER),
    "exit code forged": in_package(EXIT_CODE),
    "everything is equal": in_package(EVERYTHING_IS_EQUAL),
    "background process rewrites tests": in_package(REWRITES_TESTS),
    "time bomb": in_package(TIME_BOMB),
    "begun again with a hook": in_package(BEGUN_AGAIN),
    "home and PATH": in_package(HOME_WRITTEN),
    "programs beside the tests": with_files(
        {"python3": "#!/bin/sh\necho PASSED\n", "pytest": "#!/bin/sh\necho PASSED\n"}
    ),
}
PATCHES = {"link to a hook": LINKED_HOOK, "linked module": LINKED_FOLDER}
"""Attacks that are no trees: as patches."""
