"""Long samples are worse: votes over the shortest and over the longest half of the same 48 samples of Math-v0.

Published for Qwen3-4B on AIME25 (Think@n, 2026), and not used in the fit. Axis letters: B episode, T tick, N slot, S
sample.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ddpomdp.bench.suite import Row

MODEL, SAMPLES = "qwen3-4b-aime25", 48
PUBLISHED = {"shortest half": 0.900, "longest half": 0.853}
NO_ANSWER = -1
MEASURED = ("quality", "tokens", "wall_s")  # of an episode, as in every row of the suite


def vote(values: Sequence[int], truth: int) -> float:
    """Chance that a majority vote is right, ties broken evenly; samples without an answer do not vote."""
    counts = Counter(value for value in values if value != NO_ANSWER)
    leaders = [value for value, count in counts.items() if count == max(counts.values())]
    return (truth in leaders) / len(leaders) if leaders else 0.0


def halves(values: Sequence[int], tokens: Sequence[int], truth: int) -> dict[str, float]:
    """Votes of one problem's samples: over the half with the fewest tokens, that with the most, and all."""
    order = np.argsort(np.asarray(tokens), kind="stable")
    ordered, middle = [values[i] for i in order], len(values) // 2
    parts = {"shortest half": ordered[:middle], "longest half": ordered[middle:], "every sample": ordered}
    return {name: vote(part, truth) for name, part in parts.items()}


@cache
def _program(env: Any) -> Any:
    import jax
    import jax.numpy as jnp

    import ddpomdp
    from ddpomdp.enums import ResultCode
    from ddpomdp.rollouts import episodes
    from ddpomdp_envs.math import SOLVE

    policy = ddpomdp.policy("vote", env, n=SAMPLES)

    def note(before: Any, ts: Any, next_ts: Any, after: Any) -> tuple[Any, Any, Any]:
        events = next_ts.events
        solves = events.valid & (events.tokens[:, 0] == SOLVE)
        value = jnp.where(events.result_code == ResultCode.FOUND, after.lives.last_value, NO_ANSWER)
        return solves, value, events.cost_tokens[:, 0]

    @jax.jit
    def play(lines: Any, numbers: Any, keys: Any) -> Any:
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        batch = episodes(env, policy, lines, keys, luck, env.spec.max_ticks, numbers, lambda *_: (), note)
        return batch.noted, batch.state.task.truth, {name: batch.ts.info[name] for name in MEASURED}

    return lambda numbers, keys: play(policy.init(env), numbers, keys)


def rows(env: Any, numbers: Any, keys: Any) -> list[Row]:
    """One row per episode of a single problem: its votes, and what the suite measures of the episode itself."""
    import jax

    (solves, values, tokens), truth, info = jax.tree.map(np.asarray, _program(env)(numbers, keys))
    found = []
    for b in range(len(keys)):
        mine = solves[:, b]
        if mine.sum() != SAMPLES:
            raise RuntimeError(f"episode {b}: {mine.sum()} samples, {SAMPLES} asked for")
        votes = halves(values[:, b][mine].tolist(), tokens[:, b][mine].tolist(), int(truth[b, 0]))
        found.append({name: float(value[b]) for name, value in info.items()} | votes)
    return found
