"""One thread for each test process, no telemetry, no hub: set before anything imports torch."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}.items():
    os.environ.setdefault(name, value)
# A Ray cluster that happens to run here is none of the tests' business; those of clusters name their own.
os.environ["RAY_ADDRESS"] = "local"
# Read when Ray is imported: no worker is started unasked, none at Ray's niceness of 15 (beside other tests it would
# hardly run), and nothing told to Ray's makers.
RAY = {"RAY_enable_worker_prestart": "0", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.update(RAY)

# A loaded machine may take any time for any example; pytest-timeout catches what hangs.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# Shells start background jobs with Ctrl-C ignored, and children inherit that; here it is what is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
