"""Sandboxes: starts, leases, commands, files and recovery, beside raw Docker and a raw child process.

The same measurement as `rock bench`, for every runtime that works here. Docker needs its daemon and an image
(`rock image build`, or `--image`); where it is missing the process runtime is measured alone, and that is said.
"""

from __future__ import annotations

import reporting  # isort: skip  (first: it mends the import path)

import argparse
import asyncio
import sys
from typing import Any

from rocknroll.sandbox.bench import RuntimeName, measure
from rocknroll.sandbox.errors import ImageNotFound, RuntimeUnavailable
from rocknroll.sandbox.spec import DEFAULT_IMAGE

RUNTIMES: tuple[RuntimeName, ...] = ("process", "docker")


def main() -> int:
    """Measure one runtime after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a few samples only")
    parser.add_argument("--runtime", choices=RUNTIMES, help="only this one")
    parser.add_argument("--image", default=DEFAULT_IMAGE, help="Docker image to start (default: %(default)s)")
    arguments = parser.parse_args()
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for runtime in (arguments.runtime,) if arguments.runtime else RUNTIMES:
        try:
            result = asyncio.run(measure(runtime, arguments.quick, arguments.image))
        except (RuntimeUnavailable, ImageNotFound) as error:
            if arguments.runtime:
                raise
            print(f"{runtime} is left out: {error}", file=sys.stderr)
            continue
        ratios |= {f"{runtime}_{name}": value for name, value in result["ratios"].items()}
        figures |= {f"{runtime}_{name}_ms": value for name, value in result["figures"].items()}
    reporting.emit("sandbox", ratios, figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
