"""The suite `decisions`: its sweeps fit their policies, and its map by hand from invented rows."""

import numpy as np
import pytest

import ddpomdp
from ddpomdp.bench.workers import require_portable
from ddpomdp.options import UsageError
from ddpomdp.registry import made
from ddpomdp_envs.decisions_suite import CORNERS, KINDS, SWEEPS, chosen, decisions

SUITE = decisions()


def test_every_value_is_an_option_of_its_policy():
    for sweep in SWEEPS:
        env = made(sweep.env, preset="small", **sweep.where)
        for value in sweep.values:
            ddpomdp.policy(sweep.policy, env, **sweep.options(value))
    tasks = ("Search-v0", "Math-v0", "DataScience-v0")
    assert sorted(sweep.id for sweep in SWEEPS) == sorted(f"{task} {kind}" for task in tasks for kind in KINDS)
    require_portable(SUITE)


def invented(kind, rewards):
    """Two episodes of four seeds; the first half of the seeds says 1 more for the second value between."""
    _, cells = SUITE.plan({"envs": ["Math-v0"], "kinds": [kind], "seeds": [0, 1, 2, 3], "episodes": 2})
    return [
        {**cell.settings, "seed": cell.seed, "reward": rewards[cell.settings["value"]] + 0.01 * cell.seed + e}
        for cell in cells
        for e in (0.0, 0.5)
    ]


def test_an_optimum_between_the_ends():
    rows = invented("O5", {"1": 0.1, "2": 0.4, "3": 0.6, "4": 0.5, "6": 0.3, "8": 0.2})
    (line,) = SUITE.analyse(rows)["map"]
    assert (line["sweep"], line["best"], line["verdict"]) == ("Math-v0 O5", "3", "undecided")  # no spread, no interval
    assert {rival: round(margin["mean"], 6) for rival, margin in line["margins"].items()} == {"1": 0.5, "8": 0.4}
    assert list(line["values"]) == ["1", "2", "3", "4", "6", "8"]
    noisy = [row | {"reward": row["reward"] + 0.001 * row["seed"] * (row["value"] == "3")} for row in rows]
    (line,) = SUITE.analyse(noisy)["map"]
    assert line["verdict"] == "yes"
    np.testing.assert_allclose(line["margins"]["1"]["mean"], 0.5025)  # seeds 2 and 3 only
    (section,) = SUITE.sections(rows, {"analysis": SUITE.analyse(rows)})
    assert CORNERS in section.text and len(section.curves) == 1 and "+0.5000 over 1" in section.tables[0].rows[0][4]


def test_no_optimum_between_and_rules_without_an_order():
    (line,) = SUITE.analyse(invented("O2", {"never": 0.1, "cue": 0.3, "always": 0.4}))["map"]
    assert (line["best"], line["verdict"]) == ("cue", "no")
    (line,) = SUITE.analyse(invented("O4", {"last": 0.1, "majority": 0.2, "verdict": 0.4, "best": 0.3}))["map"]
    assert (line["best"], list(line["margins"])) == ("verdict", ["best"])
    assert SUITE.analyse(invented("O2", {"never": 0.1, "cue": 0.3, "always": 0.4})[:4])["map"] == []


def test_unknown_tasks_and_kinds_are_refused():
    with pytest.raises(UsageError, match="unknown kind 'O6'"):
        chosen(["Math-v0"], ["O6"])
    with pytest.raises(UsageError, match="no sweep of "):
        chosen(["DataScience-v0"], [])
