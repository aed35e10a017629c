"""Settings of this process and its children that must be made before model libraries are imported."""

from __future__ import annotations

import os

from rocknroll.trainer.recipe import Recipe


def prepare_process(recipe: Recipe) -> None:
    """Threads as the recipe says, no progress bars but ours, no forked tokenizer threads; the environment wins."""
    threads = max(recipe.learner.threads, recipe.engine.threads)
    # OpenMP reads this once, at import; with more threads than cores for them, small models are several times slower.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
