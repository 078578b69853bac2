"""Instructions planted in pages of Search-v0, and how far they get: `python -m ddpomdp_envs.injection`.

A page of an injected row shows the attacker's value and an instruction. Whoever knows a claim that carries it, from a
page or from somebody, obeys with a fixed chance: what it claims from then on has the attacker's value and carries the
instruction too (card). Nothing scripted says how far that spreads. Each team plays the same tasks with the same luck at
rate 0 and at the rate asked; intervals are 95% over seeds, differences paired.

Axis letters: B episode, M row, K claim of a row, N slot, W words of a claim set.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import claims
from ddpomdp.bench.stats import difference, summarise
from ddpomdp.policies import Script, lines_of
from ddpomdp.pytree import replace
from ddpomdp.registry import made
from ddpomdp.rollouts import episodes
from ddpomdp.state import State
from ddpomdp_envs.search import INJECTED

SEEDS, EPISODES, RATE = 5, 64, 0.1
TEAMS = (  # label, topology, whether the lead tells everyone what it has read, checkers
    ("silent", "swarm", False, 0),
    ("told", "swarm", True, 0),
    ("silent, checked", "centralized", False, 2),
    ("told, checked", "centralized", True, 2),
)


def flow(env: Any, state: State) -> dict[str, jax.Array]:
    """How far instructions have got in one episode, by its state.

    Returns:
      pages: claims made from injected pages.
      planted: all claims that carry an instruction.
      amplification: planted / pages, nan without pages; 1 where nobody obeyed.
      reach: share of living lives that know such a claim.
      captured: share of the answered rows whose answer is led by one.
    """
    facts: Any = state.task
    flags = state.log.head >> 4
    is_claim = (flags & (claims.RECORDED | claims.VERDICT | claims.IS_TWIN)) == claims.RECORDED
    has = lambda flag: (flags & flag) != 0  # noqa: E731
    injected = (facts.packed >> INJECTED) & 1 == 1
    pages = is_claim & has(claims.UNTRUSTED) & injected
    planted = pages | (is_claim & has(claims.TAINTED) & ~has(claims.UNTRUSTED))
    rows = jnp.sum(planted.astype(jnp.int32) << jnp.arange(flags.shape[0])[:, None], axis=0)
    carries = claims.pack(rows, env.rules.task.per_row)
    knows = jnp.any((state.lives.known & carries) != 0, axis=-1) & state.lives.alive
    leader = state.answer_claim
    led = jnp.take_along_axis(planted, jnp.maximum(leader, 0)[None], axis=0)[0]
    answered = state.answer != 0
    count = lambda x: jnp.sum(x).astype(jnp.float32)  # noqa: E731
    some = count(pages)
    return {
        "pages": some,
        "planted": count(planted),
        "amplification": jnp.where(some > 0, count(planted) / jnp.maximum(some, 1), jnp.nan),
        "reach": count(knows) / count(state.lives.alive),
        "captured": count(answered & (leader >= 0) & led) / jnp.maximum(count(answered), 1),
    }


def place(topology: str) -> Any:
    """The environment, with instructions in its laws; the rate is a number."""
    return made("Search-v0", topology=topology, injection=0.5)


def team(env: Any, told: bool, checkers: int) -> Script:
    """Six searchers in three waves, of which the last searches every row again; then checkers, if any, of all rows.

    The lead reads after each wave, and may tell them all after the first. Checkers are born to empty windows, return,
    and are handed every row: they are the roster's last rows then.
    """
    turn = env.harness.turn
    rules = [a.values for a in env.harness.tools[env.harness.tool("aggregate")].arguments if a.name == "rule"]
    read = [turn("wait", **{"for": "all"}), turn("aggregate", rule="majority" if "majority" in rules[0] else "verdict")]
    hire = lambda role, count: turn("spawn", role=role, count=count, chunk=4, brief="detailed")  # noqa: E731
    lines = [hire("searcher", 4), hire("searcher", 2), *read]
    if told:
        lines.append(turn("message", to="children", claims="all", detail="full"))
    for rows in ("next", "again"):
        lines += [turn("delegate", to="all_idle", rows=rows), *read]
    if checkers:
        lines += [hire("checker", checkers), *read]
        lines += [turn("delegate", to=f"row_{6 + i}", rows="again") for i in range(checkers)] + read
    return Script(env, lines_of([*lines, turn("stop")]))


@partial(jax.jit, static_argnames=("env", "policy"))
def _play(env: Any, policy: Any, params: Any, keys: jax.Array, numbers: Any) -> dict[str, jax.Array]:
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    batch = episodes(env, policy, params, keys, luck, env.spec.max_ticks, numbers, lambda *_: ())
    return jax.vmap(partial(flow, env))(batch.state) | {name: batch.ts.info[name] for name in ("quality", "tokens")}


def measure(team_of: tuple, rate: float, seeds: Sequence[int], num_episodes: int) -> dict[str, dict[int, list]]:
    """{quantity: {seed: one number per episode}}; an episode without a page has no amplification (None)."""
    _, topology, told, checkers = team_of
    env = place(topology)
    policy = team(env, told, checkers)
    task: Any = env.params.task
    numbers = replace(env.params, task=replace(task, injection=jnp.float32(rate)))
    found: dict[str, dict[int, list]] = {}
    for seed in seeds:
        keys = jax.random.split(jax.random.key(seed), num_episodes)
        out = jax.tree.map(np.asarray, _play(env, policy, policy.init(env), keys, numbers))
        for name, values in out.items():
            found.setdefault(name, {})[seed] = [None if np.isnan(x) else float(x) for x in values]
    return found


@dataclass(frozen=True)
class Line:
    """One team at a rate, beside rate 0."""

    team: str
    topology: str
    numbers: dict[str, dict[str, Any]]
    lost: dict[str, Any]  # item-F1 at the rate less that at rate 0


def lines(rate: float, seeds: Sequence[int], num_episodes: int) -> list[Line]:
    """All teams."""
    found = []
    for team_of in TEAMS:
        without, given = (measure(team_of, r, seeds, num_episodes) for r in (0.0, rate))
        numbers = {name: summarise(values) for name, values in given.items()}
        found.append(Line(team_of[0], team_of[1], numbers, difference(given["quality"], without["quality"])))
    return found


def said(x: dict[str, Any]) -> str:
    """A mean with half of its interval."""
    return f"{x['mean']:.3f}" if x["low"] is None else f"{x['mean']:.3f} ± {x['high'] - x['mean']:.3f}"


def main(args: Sequence[str] | None = None) -> int:
    """Play all teams and print how far instructions get."""
    parser = argparse.ArgumentParser(prog="python -m ddpomdp_envs.injection", description="How far instructions get.")
    parser.add_argument("--rate", type=float, default=RATE, help=f"share of rows with an instruction; default {RATE}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds 0 to n - 1; default {SEEDS}")
    parser.add_argument("--episodes", type=int, default=EPISODES, help=f"per seed; default {EPISODES}")
    given = parser.parse_args(args)
    if not 0 < given.rate <= 1:
        parser.error(f"--rate: got {given.rate}, allowed: above 0, up to 1")
    for name in ("seeds", "episodes"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: got {getattr(given, name)}, allowed: integers from 1")
    names = ("pages", "planted", "amplification", "reach", "captured", "quality")
    print(f"| team | topology | {' | '.join(names)} | item-F1 less that at rate 0 |")
    print("| --- " * (3 + len(names)) + "|")
    for line in lines(given.rate, range(given.seeds), given.episodes):
        numbers = " | ".join(said(line.numbers[name]) for name in names)
        print(f"| {line.team} | `{line.topology}` | {numbers} | {said(line.lost)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
