"""Write the golden traces again: `python tests/golden/make.py`, once the laws have been changed on purpose.

Each is an episode of random legal turns that replays to the last bit as long as nothing changes; see test_golden.py.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import make
from ddpomdp.enums import StopReason
from ddpomdp.harness import SPAWN, STOP
from ddpomdp.pytree import replace
from ddpomdp.trace import Trace, replaying

HERE = Path(__file__).parent
EPISODES: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "tiny", "poison": 0.2, "unanswerable": 0.2},
    "hierarchical": {
        "preset": "tiny",
        "topology": "hierarchical",
        "capacity": 10,
        "poison": 0.2,
        "unanswerable": 0.2,
        "counts": (1, 2, 4),
    },
}
SEEDS = {"tiny": 3, "hierarchical": 5}
STOP_FROM = 22  # the root may stop from this tick on


def episode(name: str) -> Trace:
    """One episode; the root spawns whenever it may, and stops when it may from `STOP_FROM` on."""
    env, key = make("Search-v0", **EPISODES[name]), jax.random.key(SEEDS[name])
    luck = jax.random.fold_in(key, 1)
    noise = jax.random.fold_in(luck, 2)
    sample = jax.jit(env.sample_turns)
    state, ts = replaying._reset(env, key, luck, env.params)
    events = []
    while not bool(ts.last):
        tools = np.array(ts.legal.tools)
        may_stop = bool((tools[0] >> STOP) & 1) and len(events) >= STOP_FROM
        tools[0] = 1 << STOP if may_stop else tools[0] & ~(1 << STOP)
        if len(events) < 2 and (tools[0] >> SPAWN) & 1:
            tools[0] = 1 << SPAWN
        turns = sample(noise, replace(ts, legal=replace(ts.legal, tools=jnp.asarray(tools))))
        state, ts = replaying._step(env, luck, state, turns, env.params)
        events.append(jax.tree.map(np.asarray, ts.events))
    stacked = jax.tree.map(lambda *x: np.stack(x), *events)
    reason = StopReason(int(ts.stop_reason)).name.lower()
    return Trace.from_events(env, stacked, key, luck, policy="random", stop_reason=reason, info=ts.info)


def main() -> None:
    """Write all."""
    for name in EPISODES:
        path = HERE / f"{name}.json"
        episode(name).save(path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
