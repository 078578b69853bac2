"""The conformance suite: good environments pass every check, each broken one is caught by the right one, by name."""

import json
from functools import partial

import pytest
from broken_envs import CASES, Broken, Compiled, RewardIsTheChannel

import ddpomdp
from ddpomdp import cli, testing
from ddpomdp.testing import CheckFailed, check_env, run_checks

# A budget that some episodes use up, a horizon that others reach.
OPTIONS = {"preset": "tiny", "max_ticks": 40, "max_turns": 45, "counts": (1, 2)}
NEEDS_TRACING = {"contract.compiles-once", "contract.portable", "contract.batches", "contract.uncompiled"}


@pytest.fixture(scope="module")
def good():
    return Compiled(ddpomdp.make("Search-v0", **OPTIONS))


def test_a_good_environment_passes_all_and_exercises_all():
    results = check_env(ddpomdp.make("Search-v0", **OPTIONS))
    idle = {result.name for result in results if result.status != "pass"}
    assert idle == {"contract.uncompiled"}
    assert all(result.events > 0 for result in results if result.status == "pass")
    assert len(results) == len({result.name for result in results}) == len(testing.CHECKS) > 50
    assert all(result.about and "\n" not in result.about for result in results)


TEAM_ONLY = ("lives.", "mail.", "luck.lineages", "legality.forced", "ends.despawned", "ends.cut", "clocks.newborn")
OTHERS = {
    "alone": {"preset": "tiny", "topology": "single"},
    "deep": {"preset": "tiny", "topology": "hierarchical", "capacity": 8, "poison": 0.2, "max_turns": 60},
    "frozen": {"preset": "tiny", "frozen_roles": ("searcher",), "reward": "hybrid"},
    "strict": {"preset": "tiny", "strict_order": True},
    "small": {"preset": "small"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_shapes_pass(name):
    results = check_env(ddpomdp.make("Search-v0", **OTHERS[name]), thorough=name == "deep")
    idle = {result.name for result in results if result.status != "pass"}
    maybe = {"contract.uncompiled", "ends.budget", "pay.individual"}
    assert all(check in maybe or (name == "alone" and check.startswith(TEAM_ONLY)) for check in idle), idle


@pytest.mark.slow
def test_a_crew_is_there_from_the_start():
    results = check_env(ddpomdp.make("Math-v0", preset="tiny"), only=["lives.root", "lives.uids", "contract.portable"])
    statuses = {result.name: result.status for result in results}
    idle = {"lives.uids": "not exercised"}  # nobody is born later
    assert statuses == {"lives.root": "pass", "contract.portable": "pass"} | idle


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ddpomdp.list_envs()) - {"Search-v0"}))
def test_other_tasks_break_no_rule(name):
    statuses = [result.status for result in check_env(ddpomdp.make(name, preset="tiny"))]
    assert "fail" not in statuses and statuses.count("pass") > 40


@pytest.mark.slow
def test_a_good_wrapper_passes(good):
    """What the broken ones do besides breaking a rule is harmless."""
    results = check_env(Broken(good), compiled=True)
    assert {result.name for result in results if result.status != "pass"} == NEEDS_TRACING


def test_the_table_covers_the_model_and_the_official_checkers():
    assert len(CASES) >= 20 and len({case.env for case in CASES}) == len(CASES)
    rules = " ".join(case.rule for case in CASES)
    assert rules.count("model 3:") >= 9 and "peers 3.1" in rules and "peers 3.2" in rules
    assert {case.check.split(".")[0] for case in CASES} == {name.split(".")[0] for name in testing.CHECKS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.env.__name__)
def test_each_broken_environment_is_caught_by_name(good, case):
    theme = case.check.split(".")[0]
    ours = [name for name in testing.CHECKS if name.startswith(theme)]
    with pytest.raises(CheckFailed) as caught:
        check_env(case.env(good), compiled=True, only=ours)
    failed = {result.name: result for result in caught.value.results if result.status == "fail"}
    assert case.check in failed, failed
    assert case.check in str(caught.value) and case.env.__name__ in str(caught.value)
    said = failed[case.check].said
    assert said and not said.startswith(("TypeError", "AttributeError", "IndexError", "KeyError")), said


def test_the_rest_is_not_exercised_when_nothing_can_be_played(good):
    class Raises(Broken):
        def step(self, luck, state, turns):
            raise RuntimeError("no such\nstep")

    first, *others = run_checks(Raises(good), compiled=True)
    assert (first.name, first.status, first.said) == ("contract.plays", "fail", "RuntimeError: no such step")
    assert {result.status for result in others} == {"not exercised"}


@pytest.mark.parametrize(
    "options, said",
    [
        ({"only": ["lives.uid"]}, "unknown check 'lives.uid'; did you mean lives.uids"),
        ({"episodes": 0}, "episodes: got 0, allowed: whole numbers 1 to"),
        ({"max_ticks": 1.5}, "max_ticks: got 1.5"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_arguments(good, options, said):
    with pytest.raises(ValueError, match=said):
        check_env(Broken(good), **options)


@pytest.mark.parametrize("env, code", [(Broken, 0), (RewardIsTheChannel, 1)])
def test_on_the_command_line(good, env, code, monkeypatch, capsys):
    """Exit code, lines and JSON, with few of the checks."""
    few = ["pay.weights", "ends.horizon", "contract.batches"]
    monkeypatch.setattr(ddpomdp, "make", lambda env_id, **options: env(good))
    monkeypatch.setattr(testing, "run_checks", partial(run_checks, compiled=True, only=few))
    assert cli.main(["check", "Search-v0", "--json", "--seed", "0"]) == code
    told = json.loads(capsys.readouterr().out)
    status = {result["name"]: result["status"] for result in told["checks"]}
    expected = "fail" if code else "pass"
    assert status == {"pay.weights": expected, "ends.horizon": "pass", "contract.batches": "not exercised"}
    assert told["ok"] is (code == 0)
    assert cli.main(["check", "Search-v0"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[-1].startswith("Search-v0: 3 rules, ")
    assert [line.split()[0] for line in lines[:3]] == ["not", "pass", expected]
    assert code == 0 or "reward: got" in lines[2]
