"""The embedded engine against batched `transformers.generate` on the same multi-turn episodes.

    python benchmarks/engine.py [--quick] [--json] [--slots 32]

Episodes have the shape of ALFWorld's (first observation 50 tokens, later ones 12 to 24, actions 3
to 7, 10 turns) and the model is the size of the default policy. `generate` is used as a careful
user would: a batch of as many episodes as the engine has slots, left-padded, KV cache on, sampling
without top-k, logits kept for the log-probabilities. It cannot keep its cache between turns, so
every turn reads the whole context, and a batch ends with its longest action. All its episodes have
equally many turns, which flatters it: real batches thin out.

Rounds alternate between the two. Times are CPU seconds of this process on one thread, so that other
work on the machine hits both alike; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from reporting import emit
from transformers import Qwen3Config, Qwen3ForCausalLM

from rocknroll.trainer.engines.base import Request, Sampling
from rocknroll.trainer.engines.local import LocalEngine
from rocknroll.trainer.tiny_model import TinyModel

VOCABULARY = 181
FIRST, LATER, ACTION, TURNS = 50, (12, 24), (3, 7), 10
MAX_LENGTH = 512


@dataclass(frozen=True)
class Episode:
    """Observations as token ids and how long the action after each of them is."""

    observations: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """What one way of playing all episodes took."""

    tokens: int
    cpu_s: float
    wall_s: float

    @property
    def speed(self) -> float:
        """Generated tokens per CPU second."""
        return self.tokens / self.cpu_s


def make_episodes(count: int, group_size: int, seed: int) -> list[Episode]:
    """Episodes of which each `group_size` share their first observation."""
    pick = random.Random(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(pick.randrange(5, VOCABULARY) for _ in range(length))

    episodes = []
    for index in range(count):
        if index % group_size == 0:
            first = tokens(FIRST)
        later = [tokens(pick.randint(*LATER)) for _ in range(TURNS - 1)]
        episodes.append(Episode((first, *later), tuple(pick.randint(*ACTION) for _ in range(TURNS))))
    return episodes


def make_model() -> Qwen3ForCausalLM:
    """The default policy's shape."""
    tiny = TinyModel()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
    )
    model: Qwen3ForCausalLM = Qwen3ForCausalLM(config)
    model.train(False)
    return model


async def play_on_engine(engine: LocalEngine, episodes: list[Episode], slots: int) -> int:
    """Play all episodes, as many at once as there are slots; tokens generated."""
    free = asyncio.Semaphore(slots)

    async def play(name: str, episode: Episode) -> int:
        context: list[int] = []
        async with free:
            for turn, (observation, length) in enumerate(zip(episode.observations, episode.lengths, strict=True)):
                context += observation
                sampling = Sampling(max_tokens=length)
                generation = await engine.generate(Request(f"{name}.{turn}", name, context, sampling))
                context += generation.token_ids
            await engine.release(name)
        return sum(episode.lengths)

    return sum(await asyncio.gather(*(play(str(index), episode) for index, episode in enumerate(episodes))))


def play_with_generate(model: Qwen3ForCausalLM, episodes: list[Episode], slots: int) -> int:
    """Play the episodes in batches, turn by turn; tokens generated."""
    for start in range(0, len(episodes), slots):
        batch = episodes[start : start + slots]
        contexts: list[list[int]] = [[] for _ in batch]
        for turn in range(TURNS):
            for context, episode in zip(contexts, batch, strict=True):
                context += episode.observations[turn]
            _generate_turn(model, contexts, [episode.lengths[turn] for episode in batch])
    return sum(sum(episode.lengths) for episode in episodes)


def _generate_turn(model: Qwen3ForCausalLM, contexts: list[list[int]], lengths: list[int]) -> None:
    longest = max(map(len, contexts))
    ids = torch.tensor([[0] * (longest - len(context)) + context for context in contexts])
    mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=max(lengths),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    sampled = output.sequences[:, longest:]
    logprobs = torch.log_softmax(torch.stack(output.logits, dim=1), dim=-1)
    _ = logprobs.gather(2, sampled[:, :, None])[:, :, 0].tolist()
    for context, tokens, length in zip(contexts, sampled.tolist(), lengths, strict=True):
        context += tokens[:length]


def timed(work: Callable[[], int]) -> Round:
    """Run once and time it."""
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = work()
    return Round(tokens, time.process_time() - cpu, time.perf_counter() - wall)


def compare(
    model: Qwen3ForCausalLM, episodes: list[Episode], slots: int, rounds: int
) -> tuple[list[Round], list[Round]]:
    """Rounds of the engine and of `generate`, in turns, after one warm-up of each."""

    def on_engine(runner: asyncio.Runner, engine: LocalEngine) -> int:
        return runner.run(play_on_engine(engine, episodes, slots))

    ours, theirs = [], []
    with asyncio.Runner() as runner:
        engine = LocalEngine(model, slots=slots, max_length=MAX_LENGTH)
        for number in range(rounds + 1):
            pair = (timed(lambda: on_engine(runner, engine)), timed(lambda: play_with_generate(model, episodes, slots)))
            if number:
                ours.append(pair[0])
                theirs.append(pair[1])
        runner.run(engine.close())
    return ours, theirs


def compare_exact(model: Qwen3ForCausalLM, episodes: list[Episode], slots: int, rounds: int) -> float:
    """Speed of a bit-exact engine as a share of the default's; median of rounds in turns."""

    def play(engine: LocalEngine) -> Round:
        return timed(lambda: runner.run(play_on_engine(engine, episodes, slots)))

    with asyncio.Runner() as runner:
        pair = [LocalEngine(model, slots=slots, max_length=MAX_LENGTH, bit_exact=exact) for exact in (True, False)]
        ratios = []
        for number in range(rounds + 2):
            exact, default = map(play, pair)
            if number:
                ratios.append(exact.speed / default.speed)
        for engine in pair:
            runner.run(engine.close())
    return statistics.median(ratios)


def spread(values: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--slots", type=int, default=32, help="episodes played at once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 2 if arguments.quick else 5
    count = arguments.slots * (1 if arguments.quick else 2)
    model = make_model()

    ratios, figures = {}, {}
    for label, group_size in (("local_over_generate", 1), ("local_over_generate_groups_of_8", 8)):
        ours, theirs = compare(model, make_episodes(count, group_size, seed=0), arguments.slots, rounds)
        ratios[label] = statistics.median(a.speed / b.speed for a, b in zip(ours, theirs, strict=True))
        walls = [b.wall_s / a.wall_s for a, b in zip(ours, theirs, strict=True)]
        figures[f"{label}: local, tokens per CPU second"] = spread([r.speed for r in ours])
        figures[f"{label}: generate, tokens per CPU second"] = spread([r.speed for r in theirs])
        figures[f"{label}: ratio of wall times"] = round(statistics.median(walls), 2)
    exact = compare_exact(model, make_episodes(count, 1, seed=0), arguments.slots, rounds)
    figures["bit_exact over default, tokens per CPU second"] = round(exact, 2)
    figures["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    figures["episodes, slots, rounds"] = f"{count}, {arguments.slots}, {rounds}"
    emit("engine", ratios, figures, arguments.json)


if __name__ == "__main__":
    main()
