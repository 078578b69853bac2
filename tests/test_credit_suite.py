"""The suite `credit`: its arithmetic, and that it tells good estimators from bad ones."""

import pytest

from ddpomdp_envs import credit_suite


def test_rank_correlation_by_hand():
    assert credit_suite.rank_correlation([1, 2, 3], [10, 40, 90]) == pytest.approx(1)
    assert credit_suite.rank_correlation([1, 2, 3, 4], [4, 3, 1, 2]) == pytest.approx(-0.8)  # 1 - 6 * 18 / 60
    # Ranks 1.5, 1.5, 3 against 1, 2, 3: covariance 1.5, spreads 1.5 and 2.
    assert credit_suite.rank_correlation([5, 5, 9], [1, 2, 3]) == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
    assert credit_suite.rank_correlation([5, 5, 5], [1, 2, 3]) == 0


def test_the_leaderboard_follows_from_the_rows():
    setting = {"env": "Chain-v0", "topology": "swarm", "decision": "tool"}
    figures = {"squared_error": 0.25, "bias": 0.5, "variance": 0.0, "ticks": 9.0, "truth_stderr": 0.0}
    rows = [
        {"seed": seed, **setting, "estimator": name, "truth": truth, "credit": sign * truth, **figures}
        for seed in (0, 1)
        for name, sign in (("shared", -1.0), ("removal", 1.0))
        for truth in (0.1, 0.2, 0.4)
    ]
    (worse, better) = (lines := credit_suite.analyse(rows)["leaderboard"])
    assert (worse["estimator"], better["estimator"]) == ("shared", "removal")
    assert worse["rank_correlation"]["mean"] == pytest.approx(-1) and better["rank_correlation"][
        "mean"
    ] == pytest.approx(1)
    assert better["truth_reliable"] == 1 and better["bias"]["mean"] == 0.5 and better["rank_correlation"]["seeds"] == 2
    (section,) = credit_suite.sections(rows, {"analysis": {"leaderboard": lines}})
    assert [row[3] for row in section.tables[0].rows] == ["removal", "shared"]


def test_reliability_of_the_truth_by_hand():
    rows = [{"truth": truth, "truth_stderr": 0.5} for truth in (0.0, 1.0, 2.0)]
    assert credit_suite.reliable(rows) == pytest.approx(0.75)  # variance 1, of which 0.25 is error
    assert credit_suite.reliable([{**row, "truth_stderr": 3.0} for row in rows]) == 0


@pytest.mark.slow
def test_common_luck_beats_the_shared_outcome_at_equal_turns(monkeypatch):
    from ddpomdp_envs import control_env

    env = control_env.make_env("Additive-v0")
    monkeypatch.setattr(credit_suite, "make", lambda world: (env, control_env.team(env)))
    cells = credit_suite.cells({"worlds": ["Additive-v0"], "contexts": 64, "seeds": [0, 1, 2]})
    rows = [
        {"seed": cell.seed, **cell.settings, **row}
        for cell in cells
        if cell.settings["decision"] == "tool"
        for row in credit_suite.run(cell)
    ]
    board = {line["estimator"]: line for line in credit_suite.analyse(rows)["leaderboard"]}
    good, bad = (board[name] for name in ("counterfactual", "shared"))
    assert good["ticks"]["mean"] == pytest.approx(bad["ticks"]["mean"])
    assert good["squared_error"]["high"] < bad["squared_error"]["low"]
    assert good["rank_correlation"]["low"] > bad["rank_correlation"]["high"]
