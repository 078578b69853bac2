"""The grid search behind Math-v0's policy `heuristic`: `python -m ddpomdp_envs.tune_math --out FILE`.

A point is the options of policy `team`, on preset `small`, topology `planner_executor_critic`, reward `outcome`; how
points are compared stands in tune.py.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ddpomdp_envs import tune as tune_
from ddpomdp_envs.math import RULES
from ddpomdp_envs.math_env import RUNS, team
from ddpomdp_envs.tune import Effort, Point, text_of

__all__ = ["Effort", "environments", "grid", "main", "text_of", "tune"]

COMMAND = "python -m ddpomdp_envs.tune_math --out envs/ddpomdp_envs/tuned/math.json"
SETTING = {"preset": "small", "topology": "planner_executor_critic", "reward": "outcome"}
MODELS = ("r1-7b", "qwen3-4b")

SAMPLES = (1, 2, 3, 4, 6)
ROUNDS = (1, 2, 3, 4)
EVIDENCE = ("short", "detailed")

SEARCH = tune_.Search(
    env_id="Math-v0",
    setting=SETTING,
    models=MODELS,
    policy="team",
    script=team,
    grid={"samples": SAMPLES, "rounds": ROUNDS, "runs": RUNS, "evidence": EVIDENCE, "rules": RULES},
    command=COMMAND,
)


@cache
def environments() -> dict[str, Any]:
    """The environment with each model; made once, as compilations belong to one."""
    return SEARCH.environments()


def grid() -> list[Point]:
    """Every point, in the order in which ties are decided."""
    every = itertools.product(SAMPLES, ROUNDS, RUNS, EVIDENCE, RULES)
    names = ("samples", "k", "run", "evidence", "rule")
    return [dict(zip(names, values, strict=True)) for values in every]


def tune(points: Sequence[Point], effort: Effort, done: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The file's content for some points; see `ddpomdp_envs.tune.tune`."""
    return tune_.tune(SEARCH, environments(), points, effort, done)


def main(args: Sequence[str] | None = None) -> int:
    """Search and write the file."""
    return tune_.main(SEARCH, grid(), tune, args)


if __name__ == "__main__":
    sys.exit(main())
