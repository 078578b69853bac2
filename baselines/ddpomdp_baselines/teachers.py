"""Whom the base policies imitate: noisy scripted teams, task by task; mostly plain teams with poor habits.

A teacher is a list of scripts with how often each is drawn. Scripts are all combinations of the options below, and a
combination is as frequent as the product of its options' shares.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ddpomdp
from ddpomdp.env import Env
from ddpomdp_baselines.clone import NoisyScripts

NOISE = 0.05
Shares = tuple[tuple[Any, float], ...]  # values of an option with how often


@dataclass(frozen=True)
class Teacher:
    """What a task's base policies imitate.

    Attributes:
      models: those that get a base and a learned policy.
      policy: name of the scripted policy.
      options: by part, values of its options with how often; see `merge`.
      updates: of training from the base policy to the learned one.
      training: options of that training,.
      merge: from one value per part to the options of `policy`.
    """

    models: tuple[str, ...]
    policy: str
    options: Mapping[str, Shares]
    updates: int = 150
    training: Mapping[str, Any] = field(default_factory=dict)
    merge: Callable[[Mapping[str, Any]], dict[str, Any]] = dict

    def scripts(self) -> Iterator[tuple[dict[str, Any], float]]:
        """Options of `policy` with how often."""
        for drawn in itertools.product(*self.options.values()):
            share = 1.0
            for _, often in drawn:
                share *= often
            yield self.merge({name: value for name, (value, _) in zip(self.options, drawn, strict=True)}), share

    def on(self, env: Env) -> NoisyScripts:
        """The teacher at work in an environment."""
        options, shares = zip(*self.scripts(), strict=True)
        return NoisyScripts(env, tuple(ddpomdp.policy(self.policy, env, **o) for o in options), shares, NOISE)

    def said(self) -> dict[str, Any]:
        """What stands in a file of weights."""
        return {**self.options, "noise": NOISE}


def _search(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {**drawn["teams"], "brief": drawn["briefs"], "rounds": drawn["rounds"]}


TEACHERS: dict[str, Teacher] = {
    # Now and then a wider team, one whose lead searches rows itself, or rows handed out again after the first merge.
    "Search-v0": Teacher(
        models=("strong", "weak"),
        policy="swarm",
        options={
            "teams": (
                ({"n": 4}, 0.3),
                ({"n": 8}, 0.3),
                ({"n": 12}, 0.2),
                ({"n": 7, "lead_rows": 20}, 0.03),
                ({"n": 9, "lead_rows": 12}, 0.03),
                ({"n": 11, "lead_rows": 4}, 0.04),
                ({"n": 6, "spread": True}, 0.03),
                ({"n": 10, "spread": True}, 0.03),
                ({"n": 15, "spread": True}, 0.04),
            ),
            "briefs": (("short", 0.5), ("standard", 0.35), ("detailed", 0.15)),
            "rounds": (((), 0.6), (("missing",), 0.2), (("again",), 0.2)),
        },
        updates=300,
        merge=_search,
    ),
    # Few samples, little code, few checks with little evidence; now and then more of each.
    "Math-v0": Teacher(
        models=("r1-7b",),
        policy="team",
        options={
            "samples": ((1, 0.5), (2, 0.35), (4, 0.15)),
            "k": ((1, 0.6), (2, 0.3), (3, 0.1)),
            "run": (("never", 0.65), ("cue", 0.2), ("always", 0.15)),
            "evidence": (("short", 0.7), ("standard", 0.15), ("detailed", 0.15)),
            "rule": (("last", 0.3), ("majority", 0.4), ("verdict", 0.3)),
        },
    ),
    # The published chain: no notes, one tune, nobody looks; now and then better habits.
    "DataScience-v0": Teacher(
        models=("qwen3-4b",),
        policy="chain",
        options={
            "note": (("list", 0.5), ("short", 0.2), ("standard", 0.2), ("full", 0.1)),
            "brief": (("short", 0.5), ("standard", 0.35), ("detailed", 0.15)),
            "check": ((False, 0.8), (True, 0.2)),
            "look": ((False, 0.9), (True, 0.1)),
            "tune": ((0, 0.2), (1, 0.5), (2, 0.15), (3, 0.15)),
        },
        training={"learning_rate": 3e-4},
    ),
}
