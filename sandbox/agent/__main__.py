"""`python3 -I -S FOLDER CONFIG`: makes a package of the folder, wherever it lies, and serves.

The folder is not put on the module search path: a module of the standard library can never be
taken from it, nor from the folder around it, which may be writable for others.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location


def load(name: str, folder: str) -> None:
    """Make the package in `folder` importable as `name`."""
    found = spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    if found is None or found.loader is None:
        raise ImportError(f"cannot load {folder}")
    sys.modules[name] = module_from_spec(found)
    found.loader.exec_module(sys.modules[name])


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    load("rocknroll_agent", here)
    from rocknroll_agent.server import main  # type: ignore[import-not-found]

    main(sys.argv[1])
