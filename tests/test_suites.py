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
from ddpomdp_envs import lineup

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
    assert sorted(policies["Math-v0"])[:2] == ["chain", "chain-cue"] and "learned" in policies["Search-v0"]
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


def test_calibration_plan_and_table():
    """The setting of every published number, and the table from invented rows: errors, band, fit."""
    suite = find("calibration")
    _, cells = suite.plan({"episodes": 2, "seeds": [0, 1], "envs": ["Search-v0"]})
    assert len(cells) == 8
    assert {(cell.settings["model"], cell.settings["policy"]) for cell in cells} == {
        ("strong", "single"),
        ("strong", "swarm-12-standard"),
        ("weak", "single"),
        ("weak", "swarm-10-standard"),
    }
    quality = {"single": 0.8, "swarm-12-standard": 0.79, "swarm-10-standard": 0.362}
    rows = [
        {
            **cell.settings,
            "seed": cell.seed,
            "quality": quality[cell.settings["policy"]] + (0.01 if cell.seed else -0.01),
        }
        for cell in cells
    ]
    analysis = suite.analyse(rows)
    assert [round(line["error_pp"], 6) for line in analysis["numbers"]] == [7.3, 0.0, 59.9, 5.0]
    assert [line["within"] for line in analysis["numbers"]] == [False, True, False, True]
    assert all(line["in_fit"] for line in analysis["numbers"])
    (section,) = suite.sections(rows, {"analysis": analysis})
    (table,) = section.tables
    assert [line[8] for line in table.rows] == ["not within", "within", "not within", "within"]
