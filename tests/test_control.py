"""The control worlds: closed forms by hand, and hit by play."""

import jax
import numpy as np
import pytest

import ddpomdp
from ddpomdp.credit.plays import player
from ddpomdp_envs import control_env, control_exact
from ddpomdp_envs.control import WORK

EPISODES = 2_048


def world(law, **options):
    """A lone lead at six subtasks of two counting decisions after one irrelevant one."""
    sizes = {"topology": "single", "num_subtasks": 6, "decisions": 2, "irrelevant": 1}
    return control_env.make_env(law, **sizes, **options)


def play(env, policy, env_params, seed=0):
    keys = jax.random.split(jax.random.key(seed), EPISODES)
    plays = player(env, policy, policy.init(env), env_params)
    return plays.ordinary(keys, jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys))


def near(values, expected, more=0.0):
    """Four standard errors."""
    assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / len(values) ** 0.5 + more, (values.mean(), expected)


@pytest.mark.parametrize("law", ["Majority-v0", "Chain-v0"])
def test_play_hits_the_closed_forms_and_the_best_stop(law):
    env = world(law)
    given = {"chances": (0.6, 0.9)} | ({"threshold": 0.7} if law == "Majority-v0" else {})
    other = world(law, **given)  # other numbers of the same program
    policy = control_env.alone(env, p=0.3)
    played = play(env, policy, other.params)
    returns = np.asarray(played.returns, np.float64)
    near(returns, control_exact.expected_return(other, 0.3))
    assert abs(returns.std() / control_exact.spread(other, 0.3) - 1) < 0.05
    choices = played.tokens[:, :18, 0, 1]
    assert (played.tokens[:, :18, 0, 0] == WORK).all() and abs(choices.mean() - 0.3) < 0.01
    for call, counts in ((0, False), (3, False), (1, True), (5, True), (17, True)):
        for choice in (0, 1):
            some = returns[choices[:, call] == choice]
            near(some, control_exact.expected_return(other, 0.3, choice if counts else None))
    values = {}
    for rows in (1, 2, 3, 5):
        lines = control_env.alone(env, rows=rows).lines
        padded = (*lines, *lines[-1:] * (20 - len(lines)))  # scripts of one length are one program
        stops = control_env.Chooser(env, padded, p=0.3)
        values[rows] = np.asarray(play(env, stops, other.params, seed=1).returns, np.float64)
        near(values[rows], control_exact.stop_value(other, rows, 0.3))
    best, value = control_exact.optimal_stop(other, 0.3)
    near(values[best], value)
    assert best == {"Majority-v0": 1, "Chain-v0": 3}[law]


def test_closed_forms_by_hand():
    three = control_env.make_env("Majority-v0", num_subtasks=3)
    assert control_exact.expected_return(three, choice=1) == pytest.approx(0.7 * 0.75 + 0.3 * 0.25)
    assert control_exact.expected_return(three, choice=0) == pytest.approx(0.3 * 0.75 + 0.7 * 0.25)
    even = control_env.make_env("Majority-v0", num_subtasks=2, chances=(0.0, 1.0))
    assert control_exact.expected_return(even, choice=1) == pytest.approx(0.75)  # 1 or, in a tie, 1/2
    assert control_exact.spread(even, choice=1) == pytest.approx(0.25)

    chain = control_env.make_env("Chain-v0", num_subtasks=2, chances=(0.5, 0.9))
    assert control_exact.expected_return(chain, 0.25, 1) == pytest.approx(0.9 * 0.6)
    for rows in (1, 7, 400):  # a chain of any length succeeds half the time
        assert control_exact.expected_return(control_env.make_env("Chain-v0", num_subtasks=rows)) == pytest.approx(
            0.5, abs=1e-4
        )
    burglar = control_env.make_env("Chain-v0", num_subtasks=10, chances=(0.8, 0.8))
    best, value = control_exact.optimal_stop(burglar)
    assert best == 4 and value == pytest.approx(0.4 * 0.8**4, rel=1e-6)  # the smaller of 0.8 / 0.2 = 4 and 5

    signal = control_exact.signal_to_noise(control_env.make_env("Additive-v0", num_subtasks=4))
    assert signal["delta"] == pytest.approx(0.1) and signal["sigma"] == pytest.approx(np.sqrt(3 * 0.25 + 0.21) / 4)
    assert signal["rho"] == pytest.approx(0.2)  # 0.5 * 0.1 / sqrt(0.25 * 0.01 + 0.06)
    decisive = control_env.make_env("Additive-v0", num_subtasks=4, decisive=0.6)
    assert control_exact.expected_return(decisive, choice=1, row=0) == pytest.approx(0.5 + 0.7 * 0.2)
    assert control_exact.expected_return(decisive, choice=1, row=2) == pytest.approx(0.5 + 0.1 * 0.2)
    for price, best in ((1e-4, 8), (2e-3, 0)):  # a subtask brings 0.5 / 8 and costs 50 tokens
        priced = control_env.make_env("Additive-v0", price_token=price)
        assert control_exact.optimal_stop(priced)[0] == best


def test_slopes_of_the_three_laws():
    """d against the number of decisions: -1/2, -1/2 and, at a fixed chance of the whole chain, -1."""
    for law, slope in (("Additive-v0", -0.5), ("Majority-v0", -0.5), ("Chain-v0", -1.0)):
        small, large = (
            control_exact.signal_to_noise(control_env.make_env(law, num_subtasks=rows))["d"] for rows in (101, 1_601)
        )
        assert np.log(large / small) / np.log(1_601 / 101) == pytest.approx(slope, abs=0.02)
    odd = [control_env.make_env("Majority-v0", num_subtasks=rows, threshold=0.7) for rows in (100, 400)]
    first, second = (np.log(control_exact.signal_to_noise(env)["d"]) for env in odd)
    assert second - first < -10  # an off-centre threshold: exponential
    for option in ("decisions", "irrelevant"):  # more decisions per subtask, or more that count nothing
        one, four = (control_exact.signal_to_noise(control_env.make_env("Additive-v0", **{option: n})) for n in (1, 4))
        assert four["delta"] == pytest.approx(one["delta"] / (4 if option == "decisions" else 1))


@pytest.mark.parametrize(
    ("law", "options", "said"),
    [
        ("Additive-v0", {"agents": 0}, "agents: got 0, allowed: whole numbers 1 to 4096"),
        ("Additive-v0", {"threshold": 0.7}, "threshold: got 0.7 for Additive-v0; only Majority-v0 has it"),
        ("Chain-v0", {"num_subtasks": 1, "success": 0.1}, "success: got 0.1, allowed with so few subtasks: from 0.333"),
        ("Majority-v0", {"chances": (0.5, 1.5)}, "chances: got 1.5, allowed: numbers 0 to 1"),
        ("Majority-v0", {"topology": "hierarchical"}, "does not fit"),
        ("Majority-v0", {"frozen_roles": ("lead",)}, "frozen_roles"),
    ],
)
def test_refusals(law, options, said):
    with pytest.raises(ValueError, match=said):
        control_env.make_env(law, **options)


def test_closed_forms_refuse_what_they_do_not_cover():
    with pytest.raises(ValueError, match="'Search-v0' has no closed forms; allowed: Additive-v0, Majority-v0, Chain"):
        control_exact.expected_return(ddpomdp.make("Search-v0", preset="tiny"))
    priced = control_env.make_env("Chain-v0", price_token=1e-3)
    with pytest.raises(ValueError, match=r"price_token: got 0\.001; closed forms have no prices"):
        control_exact.expected_return(priced)
    with pytest.raises(ValueError, match=r"row: got 8, allowed: whole numbers -8 to 7"):
        control_exact.expected_return(control_env.make_env("Chain-v0"), row=8)
