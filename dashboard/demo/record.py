"""Makes the run that `rock demo` shows: a real one of `roll train`, small. `python -m rocknroll.dashboard.demo.record`

Everything in it was played and learned. Of the trajectories, which are most of a run, a few groups of a few iterations
are kept; figures are kept to five digits. The archive's bytes depend on its content alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rocknroll.trainer.insights import insights_file
from rocknroll.trainer.recipe_loader import dump_recipe
from rocknroll.trainer.run_folder import RunFolder, open_run
from rocknroll.trainer.storage import read_groups, trajectory_file, write_trajectories

RECORDING = Path(__file__).parent / "recording.zip"
NAME = "alfworld-demo"
RECIPE = (
    "alfworld",
    f"name={NAME}",
    "credit.kind=coupled",
    "critics.kind=asyppo",
    "learner.iterations=100",
    "eval.episodes=128",
    "eval.every=20",
    "checkpoint_every=100",
    "report_to=[]",
    "cluster.address=local",
)
"""The shipped recipe, with credit and critics for their colours, and long enough for a policy that gets better."""
ITERATIONS = (20, 40, 60, 80, 100)
"""Of which trajectories are kept, ..."""
GROUPS = 1
"""... and how many groups of each."""
DIGITS = 4
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that an archive knows: when a recording was made is nobody's business."""


def train(folder: Path) -> RunFolder:
    """Train in a folder; takes a quarter of an hour on two cores.

    Raises:
        CalledProcessError: the run failed; it has said why.
    """
    code = "from rocknroll.trainer.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "train", *RECIPE, f"output_dir={folder}"], check=True)
    return open_run(folder / NAME)


def pack(run: RunFolder, target: Path) -> None:
    """Write what the dashboard shows of a run into one archive."""
    files = {
        "recipe.yaml": dump_recipe(run.recipe().model_copy(update={"output_dir": "runs"})).encode(),
        "metrics.jsonl": _lines(run.metrics_file),
        "evaluations.jsonl": run.evaluations_file.read_bytes(),
        "policy/tokenizer.json": (run.policy / "tokenizer.json").read_bytes(),
    }
    with tempfile.TemporaryDirectory() as name:
        kept = RunFolder(Path(name))
        for iteration in ITERATIONS:
            _keep(run, kept, iteration)
        files |= {str(path.relative_to(name)): path.read_bytes() for path in Path(name).rglob("*.parquet")}
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), files[path], zipfile.ZIP_DEFLATED, 9)


def _keep(run: RunFolder, kept: RunFolder, iteration: int) -> None:
    """A few groups of an iteration, and what the learner saw in them."""
    groups = list(islice(read_groups(trajectory_file(run.trajectories, iteration)), GROUPS))
    write_trajectories(kept.trajectories, iteration, groups)
    ids = pa.array([one.id for group in groups for one in group.trajectories])
    seen = pq.read_table(insights_file(run.insights, iteration))
    target = insights_file(kept.insights, iteration)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(seen.filter(pc.is_in(seen["id"], ids)), target, compression="zstd")


def _lines(file: Path) -> bytes:
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return "".join(json.dumps(_rounded(row)) + "\n" for row in rows).encode()


def _rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in row.items()}


def main() -> None:
    """Train, and replace the recording."""
    with tempfile.TemporaryDirectory() as folder:
        pack(train(Path(folder)), RECORDING)
    print(f"{RECORDING}: {RECORDING.stat().st_size} bytes")


if __name__ == "__main__":
    main()
