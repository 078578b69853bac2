"""The grid search behind DataScience-v0's policy `heuristic`: `python -m ddpomdp_envs.tune_datascience --out FILE`.

A point is the options of policy `chain`, on preset `small`, topology `planner_executor_critic`, reward `outcome`; how
points are compared stands in tune.py.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ddpomdp.harness import BRIEFS
from ddpomdp_envs import tune as tune_
from ddpomdp_envs.datascience import DETAILS
from ddpomdp_envs.datascience_env import chain
from ddpomdp_envs.tune import Effort, Point, text_of

__all__ = ["Effort", "environments", "grid", "main", "text_of", "tune"]

COMMAND = "python -m ddpomdp_envs.tune_datascience --out envs/ddpomdp_envs/tuned/datascience.json"
SETTING = {"preset": "small", "topology": "planner_executor_critic", "reward": "outcome"}
MODELS = ("qwen3-4b", "qwen3-4b-mappa", "gpt-4")

TUNES = (0, 1, 2, 3)

SEARCH = tune_.Search(
    env_id="DataScience-v0",
    setting=SETTING,
    models=MODELS,
    policy="chain",
    script=chain,
    grid={"notes": DETAILS, "briefs": BRIEFS, "check": (False, True), "look": (False, True), "tunes": TUNES},
    command=COMMAND,
)


@cache
def environments() -> dict[str, Any]:
    """The environment with each model; made once, as compilations belong to one."""
    return SEARCH.environments()


def grid() -> list[Point]:
    """Every point, in the order in which ties are decided."""
    every = itertools.product(DETAILS, BRIEFS, (False, True), (False, True), TUNES)
    names = ("note", "brief", "check", "look", "tune")
    return [dict(zip(names, values, strict=True)) for values in every]


def tune(points: Sequence[Point], effort: Effort, done: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The file's content for some points; see `ddpomdp_envs.tune.tune`."""
    return tune_.tune(SEARCH, environments(), points, effort, done)


def main(args: Sequence[str] | None = None) -> int:
    """Search and write the file."""
    return tune_.main(SEARCH, grid(), tune, args)


if __name__ == "__main__":
    sys.exit(main())
