"""`roll inspect`: a run at a glance, its trajectories, or one of them turn by turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json
from rocknroll.trainer.errors import RunFolderError
from rocknroll.trainer.run_folder import RunFolder, open_run

if TYPE_CHECKING:
    from rocknroll.trainer.cli.trajectory_view import Decode
    from rocknroll.trainer.storage import Stored


def inspect(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    trajectory: Annotated[str | None, typer.Argument(help="Id of a trajectory, or how it begins.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the trajectories.")] = False,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Where every episode went: trained, cut off, lost. Says if it balances.")
    ] = False,
    signal: Annotated[
        str, typer.Option(help="Colour the tokens of the trajectory by it: probability, advantage, gamma, waad, fai, …")
    ] = "probability",
    html: Annotated[
        Path | None, typer.Option(help="Write the trajectory as a web page with all of its signals.", dir_okay=False)
    ] = None,
    iteration: Annotated[int | None, typer.Option(help="Only what this iteration learned from.")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a run, list its trajectories, or read one of them.

    Examples:

      roll inspect runs/alfworld

      roll inspect runs/alfworld --list --iteration 3

      roll inspect runs/alfworld g12.4

      roll inspect runs/alfworld g12.4 --signal advantage

      roll inspect runs/alfworld g12.4 --html g12.4.html

      roll inspect runs/alfworld --ledger
    """
    if ledger and (trajectory is not None or listing or iteration is not None):
        raise typer.BadParameter("--ledger is about the whole run; leave out the trajectory, --list and --iteration")
    if (html is not None or signal != "probability") and trajectory is None:
        raise typer.BadParameter("--signal and --html are about one trajectory; give its id (--list shows them)")
    folder = open_run(run)
    if ledger:
        _balance(folder, as_json)
    elif trajectory is not None:
        _show_one(folder, _find(folder, trajectory, iteration), signal, html, as_json)
    elif listing:
        _list(folder, iteration, as_json)
    else:
        _summarise(folder, as_json)


def _summarise(folder: RunFolder, as_json: bool) -> None:
    if not as_json:
        from rocknroll.trainer.cli.tables import run_summary

        run_summary(folder, sys.stdout)
        return
    metrics = folder.metrics()
    rows = [{"iteration": row.iteration, **row.result.to_json()} for row in folder.evaluations()]
    last = metrics[-1] if metrics else {}
    finished = folder.policy.is_dir()
    print_json(
        {
            "run": str(folder.path),
            "iterations": len(metrics),
            "finished": finished,
            "evaluations": rows,
            "alerts": [alert.to_json() for alert in folder.alerts()],
            "last_metrics": last,
        }
    )


def _balance(folder: RunFolder, as_json: bool) -> None:
    from rocknroll.trainer.audit import audit

    found = audit(folder)
    if as_json:
        print_json({"run": str(folder.path), **found.to_json()})
        return
    from rocknroll.trainer.cli.tables import ledger_table

    ledger_table(found, sys.stdout)


def _list(folder: RunFolder, iteration: int | None, as_json: bool) -> None:
    from rocknroll.trainer.cli.trajectory_view import headline, summary_json

    found = _stored(folder, iteration)
    if as_json:
        print_json({"run": str(folder.path), "trajectories": [summary_json(stored) for stored in found]})
        return
    for stored in found:
        print(headline(stored))


def _show_one(folder: RunFolder, found: Stored, signal: str, html: Path | None, as_json: bool) -> None:
    from rocknroll.trainer.cli import token_view, trajectory_view
    from rocknroll.trainer.insights import read_insights

    decode = decoder(folder)
    insights = read_insights(folder.insights, found.iteration, found.trajectory.id)
    colouring = token_view.Colouring.of(found, insights, folder.recipe().credit)
    if signal not in colouring.values:
        raise RunFolderError(
            f"There is no `{signal}` of {found.trajectory.id}: this run has {', '.join(colouring.values)}."
            " `credit` and `critics` in the recipe bring more."
        )
    if html is not None:
        html.write_text(token_view.page(found, decode, colouring), encoding="utf-8")
    if as_json:
        print_json(trajectory_view.as_json(found, decode, insights))
    elif html is not None:
        typer.echo(f"{html} shows {found.trajectory.id} by {', '.join(colouring.values)}")
    else:
        tokens = token_view.painter(found, decode, colouring, signal)
        legend = token_view.legend(colouring, signal)
        typer.echo("\n".join(trajectory_view.as_lines(found, decode, tokens, legend)))


def _stored(folder: RunFolder, iteration: int | None) -> Iterator[Stored]:
    from rocknroll.trainer.storage import read_trajectories

    return (one for one in read_trajectories(folder.trajectories) if iteration in (None, one.iteration))


def _find(folder: RunFolder, wanted: str, iteration: int | None) -> Stored:
    """The trajectory with this id, else the only one whose id begins so.

    Raises:
        RunFolderError: there is none, or more than one.
    """
    matches = [stored for stored in _stored(folder, iteration) if stored.trajectory.id.startswith(wanted)]
    exact = [stored for stored in matches if stored.trajectory.id == wanted]
    chosen = exact or matches
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        some = ", ".join(stored.trajectory.id for stored in chosen[:6])
        raise RunFolderError(f"{len(chosen)} trajectories begin with `{wanted}` ({some}, …). Give more of the id.")
    some = ", ".join(stored.trajectory.id for stored in islice(_stored(folder, iteration), 6))
    raise RunFolderError(
        f"There is no trajectory `{wanted}` in {folder.path}. "
        + (f"It holds, for example: {some}; `--list` shows all." if some else "It holds none yet.")
    )


def decoder(folder: RunFolder) -> Decode:
    """The tokenizer that the run's policy was saved with.

    Raises:
        RunFolderError: nothing was saved yet.
    """
    from tokenizers import Tokenizer

    saved = [folder.policy / "tokenizer.json", *sorted(folder.checkpoints.glob("*/tokenizer.json"))]
    file = next((path for path in saved if path.is_file()), None)
    if file is None:
        raise RunFolderError(
            f"{folder.path} holds no tokenizer yet, so its trajectories cannot be read as text. The first checkpoint"
            " brings one; try again after it, or go on with the run."
        )
    tokenizer = Tokenizer.from_file(str(file))

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
