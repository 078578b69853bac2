"""The suites `quick` and `calibration` in tiny sizes, through the command line."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import ddpomdp
from ddpomdp import cli
from ddpomdp.bench import episode, find
from ddpomdp.bench.workers import require_portable
from ddpomdp.options import UsageError
from ddpomdp_envs import lineup, search_suites

ROOT = Path(__file__).parent.parent
QUICK = [
    "seeds=[0,1]",
    "episodes=3",
    "large=false",
    "envs=Search-v0",
    "policies=single,swarm-4-standard,swarm-12-standard",
]
QUICK += ["updates=2"]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick") / "run"
    assert cli.main(["bench", "quick", "--out", str(folder), *QUICK]) == 0
    return folder


def rows_of(folder):
    """Rows of episodes; those of training runs have no policy."""
    rows = [json.loads(line) for path in (folder / "rows").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [row for row in rows if "policy" in row]


def test_quick_is_complete_and_every_number_follows_from_its_rows(quick_run, capsys):
    results = json.loads((quick_run / "results.json").read_text("utf-8"))
    assert (results["missing"], results["failed"]) == ([], {})
    assert [tuple(entry["group"].values())[2:] for entry in results["table"]] == [
        (model, policy)
        for model in ("strong", "weak")
        for policy in ("single", "swarm-4-standard", "swarm-12-standard")
    ]
    assert all(entry["metrics"]["quality"]["episodes"] == 6 for entry in results["table"])
    assert len(rows_of(quick_run)) == 36
    assert cli.main(["report", str(quick_run), "--check"]) == 0
    done = subprocess.run([sys.executable, ROOT / "tests" / "recompute.py", quick_run], capture_output=True, text=True)
    assert (done.returncode, "numbers agree" in done.stdout) == (0, True), done.stdout


def test_quick_compares_teams_with_one_agent(quick_run):
    rows = rows_of(quick_run)
    results = json.loads((quick_run / "results.json").read_text("utf-8"))
    (line,) = (
        line
        for line in results["analysis"]["against_single"]
        if (line["model"], line["policy"]) == ("strong", "swarm-12-standard")
    )

    def mean(key, policy, seed):
        values = [row[key] for row in rows if (row["model"], row["policy"], row["seed"]) == ("strong", policy, seed)]
        assert len(values) == 3
        return sum(values) / 3

    gains = [mean("quality", "swarm-12-standard", s) - mean("quality", "single", s) for s in (0, 1)]
    speedups = [mean("wall_s", "single", s) / mean("wall_s", "swarm-12-standard", s) for s in (0, 1)]
    assert line["quality"]["mean"] == pytest.approx(sum(gains) / 2)
    assert line["speedup"]["mean"] == pytest.approx(sum(speedups) / 2)
    assert line["speedup"]["mean"] > 2


def test_quick_report_shows_tables_curves_and_traces(quick_run):
    page = (quick_run / "report.html").read_text("utf-8")
    for words in (
        "Against one agent",
        "Width and brief, weak model",
        "A swarm of 12 searchers",
        "One agent does it all",
        "A short training run",
    ):
        assert words in page
    assert len(list((quick_run / "pictures").rglob("*.png"))) == 2


def test_quick_trains(quick_run):
    path = quick_run / "rows" / "Search-v0.small.strong.train-dr_mas.s0.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [row["update"] for row in rows] == [1, 2]
    (line,) = json.loads((quick_run / "results.json").read_text("utf-8"))["analysis"]["training"]
    assert (line["first"], line["last"]) == (rows[0]["reward"], rows[1]["reward"])
    assert line["decisions"] == rows[1]["total_decisions"] > 64 * 50


def test_quick_plans_the_three_tasks():
    suite = find("quick")
    _, cells = suite.plan({"seeds": [0], "large": False})
    policies = {}
    for cell in cells:
        if "policy" in cell.settings:
            policies.setdefault(cell.settings["env"], {}).setdefault(cell.settings["policy"], []).append(cell)
    assert list(policies) == ["Search-v0", "Math-v0", "DataScience-v0"]
    for labels in policies.values():
        assert {"random", "single", "heuristic"} < set(labels)
        for cells in labels.values():
            ddpomdp.policy(
                "random", lineup.place(*(cells[0].settings[k] for k in ("env", "preset", "model", "policy")))
            )
        assert {"base", "learned"} < set(labels)
    assert sorted(policies["Math-v0"])[:3] == ["base", "chain", "chain-cue"]
    assert "chain-note" in policies["DataScience-v0"] and "swarm-256-standard" not in policies["Search-v0"]
    _, few = suite.plan({"models": ["weak"], "policies": ["single"], "seeds": [0], "large": False, "algorithms": []})
    assert [cell.id for cell in few] == ["Search-v0.small.weak.single.s0"]
    with pytest.raises(UsageError, match="unknown env 'Maths-v0'"):
        suite.plan({"envs": ["Maths-v0"]})


@pytest.mark.slow
def test_quick_plays_the_other_tasks(tmp_path):
    words = ["seeds=[0]", "episodes=2", "large=false", "preset=tiny", "policies=[chain]", "algorithms=[]"]
    words += ["envs=[Math-v0,DataScience-v0]"]
    assert cli.main(["bench", "quick", "--out", str(tmp_path / "run"), *words]) == 0
    rows = rows_of(tmp_path / "run")
    assert [(row["env"], row["policy"]) for row in rows] == [
        (env, "chain") for env in ("DataScience-v0", "Math-v0") for _ in range(2)
    ]
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Engineer, modeler, analyst: DataScience-v0, tiny, qwen3-4b" in page and "Relative performance" in page


def test_learning_pairs_episodes_and_seeds():
    """Two seeds and three episodes by hand: differences .1 .2 .3 and .3 .4 .5."""
    suite = find("learning")
    _, cells = suite.plan({"episodes": 3, "seeds": [0, 1], "models": ["weak"], "algorithms": ["grpo"], "updates": 1})
    assert [cell.settings["policy"] for cell in cells] == ["base", "heuristic", "single", "learned", "grpo", "grpo"]
    totals = dict.fromkeys(("total_episodes", "total_decisions", "total_simulated_tokens", "total_simulated_s"), 64.0)
    rewards = {"base": [0, 0, 0], "grpo": [0.1, 0.2, 0.3]}
    rows = [
        {**cell.settings, "seed": cell.seed, "reward": reward + 0.2 * cell.seed, **totals, "training_wall_s": 2.0}
        for cell in cells
        if cell.settings["policy"] in rewards
        for reward in rewards[cell.settings["policy"]]
    ]
    analysis = suite.analyse(rows)
    (line,) = analysis["differences"]
    assert (line["model"], line["algorithm"], line["reference"]) == ("weak", "grpo", "base")
    spread = np.var([0.2, 0.4], ddof=1) / 2 + np.var([0.2, 0.3, 0.4], ddof=1) / 3
    half = 12.70620474 * spread**0.5
    np.testing.assert_allclose([line["mean"], line["low"], line["high"]], [0.3, 0.3 - half, 0.3 + half])
    assert analysis["training"][0]["total_episodes"] == 64
    titles = [section.title for section in suite.sections(rows, {"analysis": analysis})]
    assert titles == ["Against the references", "What training took"]


def test_policies_meet_the_same_tasks(quick_run):
    """The answerable rows of an episode are the task's, so they agree where key and model agree."""
    answerable = {}
    for row in rows_of(quick_run):
        answerable.setdefault((row["seed"], row["episode"]), set()).add(row["answerable"])
    assert len(answerable) == 6
    assert all(len(values) == 1 for values in answerable.values())
    assert len(set.union(*answerable.values())) > 1


def test_resume_runs_only_what_is_missing(quick_run, capsys):
    before = {path.name: path.read_bytes() for path in (quick_run / "rows").glob("*.jsonl")}
    results = (quick_run / "results.json").read_bytes()
    victim = quick_run / "rows" / "Search-v0.small.weak.swarm-4-standard.s1.jsonl"
    victim.unlink()
    assert cli.main(["bench", "quick", "--out", str(quick_run), "--resume", *QUICK]) == 0
    assert "12 of 13 cells are done already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (quick_run / "rows").glob("*.jsonl")} == before
    assert (quick_run / "results.json").read_bytes() == results


def test_models_differ_in_numbers_only():
    """`quick` compiles one environment and passes the other model's numbers: it is the same program."""

    def program(model):
        env = ddpomdp.make("Search-v0", preset="tiny", model=model)
        policy = ddpomdp.policy("swarm", env, n=2)
        play = partial(episode.play.__wrapped__, env, policy, num_ticks=8)
        keys = jax.random.split(jax.random.key(0), 2)
        closed = jax.make_jaxpr(lambda *args: play(*args))(policy.init(env), keys, env.params)
        return str(closed.jaxpr), [np.asarray(x).tolist() for x in closed.consts]

    strong, weak = (ddpomdp.make("Search-v0", model=model).params for model in ("strong", "weak"))
    assert float(strong.task.hard) != float(weak.task.hard)
    assert program("strong") == program("weak")


def test_scripts_of_one_environment_share_a_compilation():
    env = ddpomdp.make("Search-v0")
    single, swarm = ddpomdp.policy("single", env), ddpomdp.policy("swarm", env)
    assert single == swarm and hash(single) == hash(swarm)
    assert [len(policy.init(env)[0]) for policy in (single, swarm)] == [8, 8]
    assert single.lines != swarm.lines


@pytest.mark.parametrize("name", ["quick", "calibration", "learning"])
def test_suites_travel_to_worker_processes(name):
    require_portable(find(name))


def test_calibration_plan():
    """The setting of every number of Search-v0, once: none is missing, none is played twice."""
    _, cells = find("calibration").plan({"episodes": 2, "seeds": [0, 1], "envs": ["Search-v0"]})
    played = [(cell.settings["model"], cell.settings["policy"]) for cell in cells if cell.seed == 0]
    assert len(cells) == 2 * len(played) == 2 * len(set(played))
    wanted = {(score.model, score.policy) for score in search_suites.SCORES}
    wanted |= {("weak", f"swarm-{n}-standard") for n in (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40)}
    wanted |= {("weak", f"swarm-{n}-as-they-come") for n in (10, 20, 40)} | {("strong", "swarm-10-standard")}
    wanted |= {("strong", f"single-rows-{m}") for m in (8, 16, 24, 32, 40, 48)}
    wanted |= {("strong", f"swarm-6-chunk-{c}") for c in (1, 2, 3, 4, 5, 6, 8)}
    assert set(played) == wanted


def test_calibration_table():
    """Errors, bands and fit from invented rows of two seeds that differ by .02."""
    quality = {"single": 0.8, "swarm-12-standard": 0.79, "swarm-10-detailed": 0.5}
    rows = [
        {"model": score.model, "policy": score.policy, "seed": seed, "quality": value + (0.01 if seed else -0.01)}
        for score in search_suites.SCORES
        for seed in (0, 1)
        for value in [quality.get(score.policy, 0.362)]
    ]
    analysis = search_suites.analysis(rows)
    assert [round(line["error_pp"], 6) for line in analysis["numbers"]] == [7.3, 0.0, 59.9, 5.0, 10.0]
    assert [line["within"] for line in analysis["numbers"]] == [False, True, False, True, False]
    (section,) = search_suites.sections(analysis)
    scores = section.tables[0]
    assert [line[8] for line in scores.rows] == ["not within", "within", "not within", "within", "–"]
    assert analysis["speed"] == [] and analysis["stragglers"] == []


def test_time_to_reach_an_f1_is_read_between_the_parts():
    """One agent: F1 .25, .5, .75 after 10, 30, 70 steps. The swarm: the same after 5, 10, 15."""
    rows = [
        {
            "model": "strong",
            "policy": label,
            "seed": 0,
            "quality": quality,
            "critical_steps": steps,
            "wall_s": 2 * steps,
        }
        for labels, steps_of in (
            ([f"single-rows-{m}" for m in search_suites.PARTS], (10, 30, 70, 80, 90, 100)),
            ([f"swarm-6-chunk-{c}" for c in search_suites.CHUNKS], (5, 10, 15, 20, 25, 30, 35)),
        )
        for label, steps, quality in zip(labels, steps_of, (0.25, 0.5, 0.75, 0.8, 0.8, 0.8, 0.8), strict=False)
    ]
    speed = search_suites.analysis(rows)["speed"]
    # .3: 10 + 20 / 5 = 14 over 5 + 5 / 5 = 6; .7: 30 + 40 * 4 / 5 = 62 over 10 + 5 * 4 / 5 = 14.
    found = {(line["clock"], line["f1"]): line["ours"]["mean"] for line in speed}
    for clock in ("critical_steps", "wall_s"):
        assert found[clock, 0.3] == pytest.approx(14 / 6) and found[clock, 0.7] == pytest.approx(62 / 14)
    within = {(line["clock"], line["f1"]): line["within"] for line in speed if line["within"] is not None}
    assert within == {("critical_steps", 0.3): False, ("critical_steps", 0.7): True, ("wall_s", 0.7): True}


def test_the_best_width_must_be_well_above_both_ends():
    """Two seeds: .3 at 8; .1 below it at 2 in both seeds, .1 and .02 below it at 40."""

    def rows(ends):
        low, high = ends
        curve = dict.fromkeys(search_suites.WIDTHS, (0.2, 0.25)) | {8: (0.30, 0.32), 2: low, 40: high}
        each = [(n, seed, value) for n, values in curve.items() for seed, value in enumerate(values)]
        return [{"model": "weak", "policy": f"swarm-{n}-standard", "seed": s, "quality": q} for n, s, q in each]

    width = search_suites.analysis(rows(((0.2, 0.21), (0.2, 0.21))))["width"]
    assert width["peak"] == 8 and width["within"]
    assert [round(line["gain"]["mean"], 6) for line in width["above"]] == [0.105, 0.105]
    assert [round(line["standard_errors"], 6) for line in width["above"]] == [21.0, 21.0]
    # Gains .1 and .3 - .02: mean .06, standard error .04.
    assert not search_suites.analysis(rows(((0.2, 0.21), (0.2, 0.30))))["width"]["within"]


def test_one_agent_stops_searching_after_its_rows():
    env = ddpomdp.make("Search-v0", preset="tiny")
    keys = jax.random.split(jax.random.key(0), 8)

    def played(**options):
        policy = ddpomdp.policy("single", env, **options)
        info = episode.play(env, policy, policy.init(env), keys, env.params, 32).info
        return {name: np.asarray(value).tolist() for name, value in info.items()}

    assert max(played(rows=1)["reported"]) == 1
    assert 2 <= max(played(rows=4)["reported"]) <= 4
    assert played(rows=6) == played()
    with pytest.raises(UsageError, match="rows: got 7"):
        ddpomdp.policy("single", env, rows=7)
