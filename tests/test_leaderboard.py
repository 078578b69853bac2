"""leaderboard.csv: lines of a run, lines of others, and every way in which a line can be wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpomdp.bench import leaderboard
from ddpomdp.bench.run import run
from ddpomdp.cli import main
from ddpomdp_envs import credit_suite

COMMITTED = Path(__file__).parent.parent / "results" / "leaderboard.csv"


def measured(cell):
    """Rows whose rank correlation, error and bias are known: two of three contexts in order, or all."""
    credits = (1.0, 2.0, 3.0) if cell.settings["estimator"] == "counterfactual" else (1.0, 3.0, 2.0)
    return [
        {
            "truth": float(place),
            "truth_stderr": 0.1,
            "credit": credit + cell.seed,
            "squared_error": 0.25 + cell.seed,
            "bias": float(cell.seed),
            "variance": 0.5,
            "ticks": 80.0,
        }
        for place, credit in enumerate(credits)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credit") / "run"
    suite = replace(credit_suite.credit(), run=measured)
    assert run(suite, folder, {"worlds": ["Additive-v0"], "seeds": [0, 1, 2], "contexts": 8}) == 0
    return folder


@pytest.fixture
def board(folder, tmp_path, capsys):
    path = tmp_path / "leaderboard.csv"
    assert main(["report", str(folder), "--leaderboard", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 8 lines of ddpomdp\n"
    return path


def test_lines_hold_what_the_run_says(board):
    lines = leaderboard.read(board)
    assert [(line["decision"], line["estimator"]) for line in lines[::4]] == [
        ("communicate", "counterfactual"),  # the best rank correlation first
        ("tool", "counterfactual"),
    ]
    best, second = lines[:2]
    assert (best["rank_correlation"], best["rank_correlation_per_seed"]) == ("1", "1 1 1")
    assert (second["rank_correlation"], second["rank_correlation_low"]) == ("0.5", "")  # 1 - 6 * 2 / 24; seeds agree
    assert (best["seeds"], best["bias"], best["bias_per_seed"]) == ("0 1 2", "1", "0 1 2")
    # Mean 1, sd 1, three seeds: 1 -+ 4.30265273 / sqrt(3).
    assert float(best["bias_low"]) == pytest.approx(1 - 4.30265273 / 3**0.5)
    assert (best["env_version"], best["contexts"], best["submitter"]) == ("0.1.0", "8", "ddpomdp")


def test_check_passes_and_others_can_submit(board, folder, capsys):
    assert main(["report", str(board), "--check"]) == 0
    assert "every number follows from its seeds" in capsys.readouterr().out
    assert main(["report", str(folder), "--leaderboard", str(board), "--submitter", "Ada"]) == 0
    assert main(["report", str(folder), "--leaderboard", str(board)]) == 0  # ours again: replaced, not doubled
    lines = leaderboard.read(board)
    assert len(lines) == 16 and {line["submitter"] for line in lines} == {"ddpomdp", "Ada"}
    assert leaderboard.check(board) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank_correlation": "0.9"}, "line 2: rank_correlation 0.9, from its seeds 1"),
        ({"bias_high": ""}, "bias_high is empty, from its seeds 3.48"),
        ({"bias_per_seed": "0 1 2.5"}, "bias 1, from its seeds 1.16"),
        ({"seeds": "0 1 1"}, "seeds '0 1 1'"),
        ({"seeds": "0 1"}, "seeds '0 1'"),
        ({"seeds": "0 1 x"}, "seeds '0 1 x'"),
        ({"ticks_per_seed": "80 80"}, "ticks_per_seed '80 80'; allowed: 3 numbers, one per seed"),
        ({"ticks_per_seed": "80 80 nan"}, "ticks_per_seed '80 80 nan'"),
        ({"rank_correlation_per_seed": "1 1 4", "rank_correlation": "2"}, "allowed: numbers from -1 to 1"),
        ({"env": "Additiv-v0"}, "Additive-v0"),
        ({"env_version": "0.0.9"}, "env_version 0.0.9; Additive-v0 is 0.1.0 here"),
        ({"harness": "none"}, "harness 'none'"),
        ({"jax": ""}, "jax is empty"),
        ({"estimator": " "}, "estimator is empty"),
        ({"contexts": "2"}, "contexts '2'"),
        ({"truth_reliable": "1.5"}, "truth_reliable '1.5'"),
    ],
)
def test_what_is_wrong_is_named(board, capsys, change, said):
    first, *others = leaderboard.read(board)
    leaderboard.write(board, [{**first, **change}, *others])
    assert main(["report", str(board), "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and any(
        said in problem and problem.startswith("line 2:") for problem in found["differences"]
    )


def test_keys_stand_once_and_columns_are_all_there(board, capsys):
    lines = leaderboard.read(board)
    leaderboard.write(board, [*lines, lines[0]])
    (problem,) = leaderboard.check(board)
    assert problem.startswith("line 10: the key ddpomdp, counterfactual") and problem.endswith("of line 2 again")
    text = board.read_text()
    board.write_text(text.replace("submitter,", "who,", 1))
    assert main(["report", str(board), "--check"]) == 2
    assert "lacks submitter, has 'who'" in capsys.readouterr().err
    board.write_text(text.split("\n")[0] + "\n")
    assert leaderboard.check(board) == ["no line"]


def test_refusals(board, folder, tmp_path, capsys):
    for words, said in (
        ([board], "is a leaderboard; allowed: --check"),
        ([tmp_path / "none.csv", "--check"], "cannot read"),
        ([folder, "--check", "--leaderboard", board], "at once"),
        ([folder, "--leaderboard", tmp_path / "x.txt"], "ends in .csv"),
        ([folder, "--leaderboard", board, "--submitter", " "], "submitter: got ' '"),
    ):
        assert main(["report", *map(str, words)]) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1


def test_the_committed_leaderboard_is_fine():
    assert leaderboard.check(COMMITTED) == []
    lines = leaderboard.read(COMMITTED)
    worlds = {(world.env, world.options.get("topology", "swarm")) for world in credit_suite.WORLDS.values()}
    assert {(line["env"], line["topology"]) for line in lines} == worlds
    assert {line["estimator"] for line in lines} == set(credit_suite.ESTIMATORS)
