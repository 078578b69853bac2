"""The grid search behind Search-v0's policy `heuristic`: `python -m ddpomdp_envs.tune_search --out FILE`.

A point is the options of policy `swarm`, on preset `small`, topology `swarm`, reward `outcome`; how points are compared
stands in tune.py.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ddpomdp.harness import BRIEFS
from ddpomdp_envs import tune as tune_
from ddpomdp_envs.search_env import swarm
from ddpomdp_envs.tune import Effort, Point, text_of

__all__ = ["Effort", "environments", "grid", "main", "text_of", "tune"]

COMMAND = "python -m ddpomdp_envs.tune_search --out envs/ddpomdp_envs/tuned/search.json"
SETTING = {"preset": "small", "topology": "swarm", "reward": "outcome"}
MODELS = ("strong", "weak")
ROWS, CHUNK = 48, 4  # of preset `small`: its rows, and the one chunk it offers beside an even split

TEAMS: tuple[Point, ...] = (
    *({"n": n} for n in (1, 2, 4, 8, 12)),
    *({"n": n, "spread": True} for n in (3, 5, 6, 7, 9, 10, 11, 13, 14, 15)),
    *({"n": n, "lead_rows": ROWS - CHUNK * n} for n in (7, 8, 9, 10, 11)),
)
PLANS: tuple[Point, ...] = (
    {},
    {"rule": "last"},
    {"rule": "union"},
    {"rounds": ["missing"]},
    {"rounds": ["missing"], "wait": "half"},
    {"rounds": ["conflicting"]},
    {"rounds": ["again"]},
    {"rounds": ["again"], "wait": "half"},
    {"rounds": ["missing", "missing"]},
    {"rounds": ["missing", "conflicting"]},
)  # without checkers `verdict` and `best` decide as `majority`


SEARCH = tune_.Search(
    env_id="Search-v0",
    setting=SETTING,
    models=MODELS,
    policy="swarm",
    script=swarm,
    grid={"teams": TEAMS, "briefs": BRIEFS, "plans": PLANS},
    command=COMMAND,
    quality="item_f1",
)


@cache
def environments() -> dict[str, Any]:
    """The environment with each model; made once, as compilations belong to one."""
    return SEARCH.environments()


def grid() -> list[Point]:
    """Every point, in the order in which ties are decided."""
    return [{**team, "brief": brief, **plan} for team, brief, plan in itertools.product(TEAMS, reversed(BRIEFS), PLANS)]


def tune(points: Sequence[Point], effort: Effort, done: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The file's content for some points; see `ddpomdp_envs.tune.tune`."""
    return tune_.tune(SEARCH, environments(), points, effort, done)


def main(args: Sequence[str] | None = None) -> int:
    """Search and write the file."""
    return tune_.main(SEARCH, grid(), tune, args)


if __name__ == "__main__":
    sys.exit(main())
