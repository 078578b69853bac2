"""A lone lead of Search-v0: its stopping problem by hand, by brute force, and against the environment."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import ddpomdp
from ddpomdp_baselines import stopping
from ddpomdp_baselines.stopping import lookup, oracle, report, rules
from ddpomdp_baselines.stopping.lookup import Laws

PRICE = 1e-4  # the gap between the best fixed number of turns and Snell is 5.4% of the Snell value
ONE = Laws(1, 1, 0.0, (1.0,), (0.5,), 0.0, 1.0, 0.5, 0.6, 250.0, (50.0, 10.0))
TWO = Laws(1, 2, 0.1, (0.25, 1.0), (0.8, 0.6), 0.25, 0.5, 0.4, 0.5, 1.0, (0.5, 0.25))


@cache
def world():
    return stopping.world("alone", price=PRICE)


@cache
def episodes():
    return world().episodes(0, 512)


def test_one_row_and_one_turn_by_hand():
    """Right with .5 (item-F1 1), a value with .75, which costs 60 to merge: .5 - price (250 + 45)."""
    process = lookup.seen(ONE)[0]
    assert oracle.snell(process, 1e-3).value == pytest.approx(0.5 - 1e-3 * 295)
    assert oracle.snell(process, 2e-3).value == 0.0
    assert lookup.bounds(ONE, 1e-3) == pytest.approx((0.205, 0.205))
    found = process.payoff[1][lookup.places(ONE, 1)[1, 0, 1]]
    assert found == pytest.approx(2 / 3)  # two thirds of what is found are right


def test_a_wrong_value_that_stands_costs_quality():
    """Two rows, both found; one right, one wrong, which merging rejects with .6: 2/(1 + 2) or 2/(2 + 2)."""
    laws = replace(ONE, rows=2, turns=2, q=(0.5, 0.5), wrong=1.0)
    payoff = lookup.told(laws).payoff[2][lookup.states(laws, 2).tolist().index([2, 0, 1, 1])]
    assert payoff == pytest.approx(0.6 * 2 / 3 + 0.4 * 0.5)
    both = lookup.seen(laws)[0].payoff[2][lookup.places(laws, 2)[2, 0, 2]]
    none = 0.25 * 0.0 + 0.5 * payoff + 0.25 * 1.0
    assert both == pytest.approx(none)


@pytest.mark.parametrize("price", [0.05, 0.15, 0.3])
def test_snell_is_the_best_of_all_rules_on_what_is_seen(price):
    """Every rule on (t, d, n, f), put into the problem with everything that is hidden."""
    hidden, (seen, groups) = lookup.told(TWO), lookup.seen(TWO)
    free = seen.sizes[:-1]
    cuts = np.cumsum(free)[:-1]
    values = [
        oracle.worth(
            hidden, price, [stop[group] for stop, group in zip(np.split(np.asarray(rule), cuts), groups, strict=False)]
        ).value
        for rule in itertools.product([False, True], repeat=sum(free))
    ]
    assert len(values) == 32
    low, high = lookup.bounds(TWO, price)
    assert low == pytest.approx(max(values), abs=1e-12)
    assert low <= high + 1e-12 and min(values) < low


def test_full_information_and_the_prophet_by_hand():
    """One row, hard with .25 (then q is .1 instead of .5), one turn for .2 at price 1; merging is free, all stands."""
    laws = Laws(1, 1, 0.0, (1.0,), (0.5,), 0.25, 0.2, 0.5, 0.0, 0.2, (0.0, 0.0))
    mean = 0.75 * 0.5 + 0.25 * 0.1
    assert oracle.snell(lookup.seen(laws)[0], 1.0).value == pytest.approx(mean - 0.2)
    assert lookup.full_information(laws, 1.0) == pytest.approx(0.75 * (0.5 - 0.2))  # a hard row is left alone
    assert lookup.prophet(laws, 1.0) == pytest.approx(mean * (1.0 - 0.2))  # who knows what comes pays for it only
    assert lookup.full_information(replace(laws, hard=0.0), 1.0) == pytest.approx(0.3)


@pytest.mark.parametrize("price", [0.0, 0.05, 0.1])
def test_bounds_stand_in_order(price):
    laws = replace(TWO, rows=3, turns=5, q=(0.8, 0.75, 0.7, 0.65, 0.6))
    low, told = lookup.bounds(laws, price)
    ladder = [low, told, lookup.full_information(laws, price), lookup.prophet(laws, price)]
    assert all(below <= above + 1e-12 for below, above in itertools.pairwise(ladder))
    assert price == 0.0 or ladder[0] < ladder[1] < ladder[2] < ladder[3]


def test_episodes_of_the_environment_are_paths_of_the_problem():
    data, process = episodes(), world().process
    assert sum(process.sizes) == 6650 and data.here.shape == (512, 29)
    assert 10 < data.here.sum(axis=1).mean() < 29  # an episode is over with its last row
    error = data.known - data.quality
    assert np.all(np.abs(error.mean(axis=0)) <= 4 * error.std(axis=0) / 512**0.5 + 1e-9)
    here = process.start
    for t in range(20):
        mine = np.bincount(data.cell[:, t] - process.offsets[t], minlength=len(here)) / 512
        noise = 0.5 * np.sqrt(2 / np.pi) * np.sqrt(here * (1 - here) / 512).sum()
        assert 0.5 * np.abs(mine - here).sum() <= 1.3 * noise + 1e-9
        on, here = here, np.zeros(process.sizes[t + 1])
        np.add.at(here, process.child[t], process.chance[t] * on[:, None])
    assert np.allclose(data.known[:, 0], 0.0) and data.known.max() > 0.8


def test_snells_rule_is_worth_in_the_environment_what_the_problem_says():
    data, process = episodes(), world().process
    best, (k, fixed) = oracle.snell(process, PRICE), oracle.fixed(process, PRICE)
    net = data.net(PRICE)
    for value, times in (
        (best.value, report.snell_times(process, data, PRICE)),
        (fixed.value, rules.stop_times("fixed", k, data)),
    ):
        paid = rules.at(net, times)
        assert paid.mean() == pytest.approx(value, abs=3 * paid.std() / 512**0.5)
    assert (best.value - fixed.value) / best.value > 0.05
    prophet = rules.at(data.net(PRICE, "known"), report.hindsight(data, PRICE, "known")).mean()
    assert prophet > best.value


def test_a_lead_that_tires_and_is_sure_has_bounds():
    env = ddpomdp.make("Search-v0", preset="tiny", topology="single", capacity=1, price_second=0.0)
    laws, plain = lookup.laws(env, 28), lookup.laws(env, 28, lookup.plain(env.params))
    assert laws.q[0] == plain.q[27] > laws.q[27]
    assert not lookup.is_plain(env.params) and lookup.is_plain(lookup.plain(env.params))
    low, high = lookup.bounds(laws, PRICE)
    assert low == pytest.approx(0.2695, abs=5e-4) and high == pytest.approx(0.2713, abs=5e-4)
    low, high = lookup.bounds(plain, PRICE)
    exact = oracle.snell(lookup.seen(plain)[0], PRICE).value
    assert low == pytest.approx(exact, abs=1e-9) and high > exact


def test_what_is_refused():
    env = ddpomdp.make("Search-v0", preset="tiny", topology="single", capacity=1)
    with pytest.raises(ValueError, match="rows: got 11"):
        lookup.full_information(replace(ONE, rows=11), 0.1)
    with pytest.raises(ValueError, match="turns: got 0"):
        lookup.laws(env, 0)
    with pytest.raises(ValueError, match="poison: got"):
        lookup.laws(ddpomdp.make("Search-v0", preset="tiny", topology="single", capacity=1, poison=0.5), 4)
    with pytest.raises(ValueError, match="allowed: Search-v0 with 'single'"):
        lookup.laws(ddpomdp.make("Search-v0", preset="tiny"), 4)
