"""Gymnasium environments whose observations and actions are text.

Importing this package registers their ids; the engines are imported when one is made.
"""

from __future__ import annotations

import gymnasium

VECTORS = "rocknroll.envs.adapters.vector"
"""What `make_vec` makes: members in sandboxes that step at the same time."""

gymnasium.register(
    id="rocknroll/AlfWorld-v0",
    entry_point="rocknroll.envs.alfworld.env:AlfWorldEnv",
    vector_entry_point=f"{VECTORS}:alfworld",
    kwargs={"config": {"train_games": 60, "seen_games": 12, "unseen_games": 12, "max_steps": 50}},
)
"""A few generated games, made in seconds at the first reset; pass your own `config` for more."""

gymnasium.register(
    id="rocknroll/Countdown-v0",
    entry_point="rocknroll.envs.reasoning.countdown:CountdownEnv",
    vector_entry_point=f"{VECTORS}:countdown",
)
gymnasium.register(
    id="rocknroll/Math-v0",
    entry_point="rocknroll.envs.reasoning.math_env:MathEnv",
    vector_entry_point=f"{VECTORS}:math",
)
gymnasium.register(
    id="rocknroll/Code-v0",
    entry_point="rocknroll.envs.reasoning.code_family:CodeEnv",
    vector_entry_point=f"{VECTORS}:code",
)
gymnasium.register(
    id="rocknroll/Judge-v0",
    entry_point="rocknroll.envs.reasoning.judge_family:JudgeEnv",
    vector_entry_point=f"{VECTORS}:judge",
)

gymnasium.register(
    id="rocknroll/SWEBench-v0",
    entry_point="rocknroll.envs.swebench.family:SWEBenchEnv",
    vector_entry_point=f"{VECTORS}:swebench",
)
"""The shipped task set, in process sandboxes; pass your own `config` for others."""
