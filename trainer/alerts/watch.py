"""Looks at a run while it goes on: at each iteration, and by the clock, so that a run that stands still is seen.

The clock is a thread of this process. What concerns the sandboxes is read where they are, in the rollout process, and
comes with its answers.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from rocknroll.sandbox.alerts.alarm import Alarm
from rocknroll.sandbox.alerts.board import Board
from rocknroll.sandbox.alerts.clock import steady_clock
from rocknroll.sandbox.alerts.growth import Growth
from rocknroll.sandbox.alerts.notify import Notifier
from rocknroll.sandbox.alerts.readings import SLOW_LOOK_S, disk_readings, memory_reading
from rocknroll.sandbox.alerts.rule import Alert, Reading
from rocknroll.sandbox.nodes import this_node
from rocknroll.trainer.alerts.readings import TrainingReader
from rocknroll.trainer.alerts.rules import training_rules
from rocknroll.trainer.recipe import Recipe
from rocknroll.trainer.run_folder import RunFolder
from rocknroll.trainer.ui import RunUI

_log = logging.getLogger(__name__)


class RunWatch:
    """Use as a context manager while the run plays and learns. Alerts go to the UI, `alerts.jsonl`, and whom the recipe
    names; those that an earlier session left open are gone on with.

    Raises:
        SpecInvalid: the webhook's URL is not where the recipe says.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        ui: RunUI,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._every_s, self._folder, self._ui = recipe.alerts.every_s, folder, ui
        self._clock = clock or steady_clock()
        self._reader = TrainingReader(recipe, folder.metrics(), self._clock())
        self._disks = {"the run folder": folder.path, "the temporary folder": Path(tempfile.gettempdir())}
        self._growth, self._measured_at = Growth(), -SLOW_LOOK_S
        self._of_sandboxes: Sequence[Reading] = ()
        origin = {"from": "roll", "host": this_node(), "run": str(folder.path.absolute())}
        notifier = Notifier(recipe.alerts, origin, environment)
        board = Board(training_rules(recipe.alerts.rules), folder.alerts())
        self._alarm = Alarm(board, notifier, self._record)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._by_the_clock, name="run-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._alarm.close()

    def heard(self, finished: int, of_sandboxes: Sequence[Reading]) -> None:
        """What the rollouts tell: episodes that have been finished, and what there is to read of their sandboxes."""
        with self._lock:
            self._of_sandboxes = of_sandboxes
            self._reader.heard(finished, self._clock())

    def iteration(self, row: Mapping[str, float]) -> None:
        """The learner has finished an iteration; `row` as in `metrics.jsonl`."""
        with self._lock:
            self._reader.iteration(row, self._clock())
            self._look()

    def look(self) -> None:
        """Judge what there is to read now."""
        with self._lock:
            self._look()

    def _by_the_clock(self) -> None:
        well = True
        while not self._over.wait(self._every_s):
            try:
                self.look()
                well = True
            except Exception:  # the run goes on without alerts rather than not at all
                if well:
                    _log.exception("the run cannot be looked at for alerts; this is said once, and tried again")
                well = False

    def _look(self) -> None:
        now = self._clock()
        if now >= self._measured_at + SLOW_LOOK_S:
            self._measured_at = now
            self._growth.add(now, psutil.Process().memory_info().rss)
        readings = [*self._reader.read(now), *self._of_sandboxes, *disk_readings(self._disks)]
        self._alarm.observe([*readings, memory_reading("the learner", self._growth)], now)

    def _record(self, alert: Alert) -> None:
        """The file may be what an alert is about: on a full disk the UI and the log have it all the same."""
        self._ui.alert(alert)
        try:
            self._folder.append_alert(alert)
        except OSError as error:
            _log.error("%s cannot be written: %s", self._folder.alerts_file, error.strerror)
