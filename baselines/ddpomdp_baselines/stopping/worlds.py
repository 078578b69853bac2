"""Leads that go through their work without stopping: one per task and topology, for the suite `stopping`.

A world is an environment, the lines of its lead, before which of them it might stop, and how it would.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ddpomdp
from ddpomdp.env import Env
from ddpomdp.options import choose, whole
from ddpomdp.params import Params
from ddpomdp.policies import Script, lines_of
from ddpomdp_baselines.stopping import known, lookup
from ddpomdp_baselines.stopping.process import Process
from ddpomdp_baselines.stopping.trajectories import Suppressed, collect


@dataclass(frozen=True)
class World:
    """A lead that never stops.

    Attributes:
      env: the environment.
      script: its lines.
      asked: indices of lines before which it might stop.
      closing: turns with which it would.
      confidence: the feature that stands for confidence.
      num_ticks: enough for all lines.
      params: of the environment; None: its own.
    """

    env: Env
    script: Script
    asked: tuple[int, ...]
    closing: tuple[Any, ...]
    confidence: str
    num_ticks: int
    params: Params | None = None

    @property
    def process(self) -> Process:
        """The stopping problem on what the lead knows; `ValueError` where it is not known."""
        if self.env.id == "Search-v0" and self.params is not None:
            return lookup.seen(lookup.laws(self.env, len(self.asked) - 1, self.params))[0]
        return known.process(self.env)

    def episodes(self, seed: int, episodes: int, group: int = 1) -> Suppressed:
        """Suppressed episodes: the same seed, the same ones."""
        return collect(
            self.env,
            self.script,
            self.asked,
            self.closing,
            seed=seed,
            episodes=episodes,
            confidence=self.confidence,
            num_ticks=self.num_ticks,
            group=group,
            params=self.params,
        )


def vote(price: float = 1e-6) -> World:
    """Math-v0, single: one answer after the other to one problem, then the majority. Decision t: t draws."""
    env = ddpomdp.make("Math-v0", preset="tiny", oracle_form="vote", capacity=1, price_token=price)
    turn, draws = env.harness.turn, env.rules.passes
    lines = lines_of([*[turn("solve")] * draws, turn("wait")])
    closing = (turn("aggregate"), turn("stop"))
    return World(env, Script(env, lines), tuple(range(draws + 1)), closing, "mean_top_confidence", draws + 1)


def alone(price: float = 1e-4, turns: int = 28) -> World:
    """Search-v0, single, six rows: the lead searches turn by turn, then merges what it found. Laws are `plain`, so that
    its information states are few, and seconds cost nothing.
    """
    whole("turns", turns, 2, 28)
    env = ddpomdp.make("Search-v0", preset="tiny", topology="single", capacity=1, price_token=price, price_second=0.0)
    turn = env.harness.turn
    script = Script(env, lines_of([*[turn("search")] * turns, turn("wait")]))
    closing = (turn("aggregate", rule="majority"), turn("stop"))
    params = lookup.plain(env.params)
    return World(env, script, tuple(range(turns + 1)), closing, "mean_top_confidence", turns + 1, params)


def swarm(searchers: int = 4, rounds: int = 10, rows: int = 24) -> World:
    """Search-v0, swarm: each round every searcher gets one row more, first new ones, then those without an answer."""
    whole("searchers", searchers, 1, 12)
    whole("rounds", rounds, 2, 40)
    env = ddpomdp.make(
        "Search-v0",
        capacity=1 + searchers,
        num_subtasks=rows,
        counts=(searchers,),
        chunks=(1,),
        delegate_chunks=(1,),
    )
    turn = env.harness.turn
    read = [turn("wait", **{"for": "all"}), turn("aggregate", rule="majority")]
    lines, asked = [turn("spawn", role="searcher", brief="detailed"), *read], [3]
    fresh = -(-rows // searchers)
    for j in range(1, rounds):
        lines += [turn("delegate", to="all_idle", rows="next" if j < fresh else "missing"), *read]
        asked.append(len(lines))
    lines.append(turn("wait"))
    return World(env, Script(env, lines_of(lines)), tuple(asked), (turn("stop"),), "mean_top_confidence", 14 * rounds)


def crew(rounds: int = 8) -> World:
    """Math-v0, planner_executor_critic: solve; then verify and solve again what is rejected or open, over and over."""
    whole("rounds", rounds, 2, 40)
    env = ddpomdp.make("Math-v0")
    from ddpomdp_envs.math_env import _delegate, _wait

    read = [_wait(env), env.harness.turn("aggregate", rule="verdict")]
    lines, asked = [_delegate(env, "solver", "next", "short"), *read], [3]
    for _ in range(1, rounds):
        lines += [_delegate(env, "verifier", "missing", "short"), *read]
        asked.append(len(lines))
        lines += [_delegate(env, "solver", "conflicting", "short"), *read]
        asked.append(len(lines))
    lines.append(env.harness.turn("wait"))
    closing = (env.harness.turn("stop"),)
    return World(env, Script(env, lines_of(lines)), tuple(asked), closing, "mean_accepts", 16 * rounds)


def science(rounds: int = 6) -> World:
    """DataScience-v0, planner_executor_critic: the chain of engineer, modeler and analyst, over and over."""
    whole("rounds", rounds, 2, 40)
    env = ddpomdp.make("DataScience-v0")
    from ddpomdp_envs.datascience_env import Crew, _delegate, _habits

    turn = env.harness.turn
    read = [turn("wait", **{"for": "all"}), turn("aggregate", rule="last")]
    lines, asked = [], []
    for j in range(rounds):
        for role, rows in ((1, "again" if j else "next"), (2, "again"), (3, "again")):
            if role > 1:
                lines.append(turn("message", to=f"row_{role - 1}", claims="all", detail="list"))
            lines += [_delegate(env, role, rows, "standard"), *read]
            asked.append(len(lines))
    lines.append(turn("wait"))
    script = Crew(env, lines_of(lines), habits=_habits(env, True, True, None, "list"))
    return World(env, script, tuple(asked), (turn("stop"),), "mean_top_confidence", 30 * rounds)


WORLDS: dict[str, Callable[..., World]] = {
    "vote": vote,
    "alone": alone,
    "swarm": swarm,
    "crew": crew,
    "science": science,
}


@cache
def world(name: str, **options: Any) -> World:
    """A world, the same object for the same options, so that it compiles once."""
    choose("world", name, WORLDS)
    return WORLDS[name](**options)
