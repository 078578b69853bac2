"""The oracles of stopping, against closed forms and brute force."""

import itertools
import math
from functools import cache

import numpy as np
import pytest

import ddpomdp
from ddpomdp_baselines import stopping
from ddpomdp_baselines.stopping import known, oracle
from ddpomdp_baselines.stopping.oracle import Box
from ddpomdp_baselines.stopping.process import Process
from ddpomdp_envs.control_exact import mean_chance, optimal_stop


@cache
def vote_env():
    return ddpomdp.make("Math-v0", preset="tiny", oracle_form="vote")


def random_process(seed, sizes=(1, 2, 2, 2), moves=2):
    rng = np.random.default_rng(seed)
    child = [rng.integers(0, sizes[t + 1], (size, moves)) for t, size in enumerate(sizes[:-1])]
    chance = [rng.dirichlet(np.ones(moves), size) for size in sizes[:-1]]
    cost = [np.full(size, rng.random()) for size in sizes[:-1]]
    payoff = [rng.random(size) for size in sizes]
    return Process(tuple(payoff), tuple(cost), tuple(child), tuple(chance), np.ones(1))


def paths(process):
    """(probability, gains along the path at price 1) of every path."""

    def walk(t, state, chance, spent, gains):
        gains = [*gains, process.payoff[t][state] - spent]
        if t == process.horizon:
            yield chance, gains
            return
        for child, p in zip(process.child[t][state], process.chance[t][state], strict=True):
            yield from walk(t + 1, child, chance * p, spent + process.cost[t][state], gains)

    return list(walk(0, 0, 1.0, 0.0, []))


@pytest.mark.parametrize("seed", range(5))
def test_snell_is_the_best_of_all_rules_and_the_prophet_the_mean_best_of_paths(seed):
    process = random_process(seed)
    free = process.sizes[:-1]
    rules = itertools.product([False, True], repeat=sum(free))
    cuts = np.cumsum(free)[:-1]
    values = [oracle.worth(process, 1.0, np.split(np.asarray(rule), cuts)).value for rule in rules]
    assert len(values) == 32
    best = oracle.snell(process, 1.0)
    assert best.value == pytest.approx(max(values), abs=1e-12)
    assert oracle.worth(process, 1.0, best.stops).value == pytest.approx(best.value, abs=1e-12)
    assert oracle.prophet(process, 1.0) == pytest.approx(sum(p * max(gains) for p, gains in paths(process)), abs=1e-12)
    assert oracle.prophet(process, 1.0) >= best.value - 1e-12
    assert min(values) < best.value


def test_rules_with_probabilities_lie_below_snell():
    process, rng = random_process(7), np.random.default_rng(0)
    best = oracle.snell(process, 1.0).value
    for _ in range(50):
        found = oracle.worth(process, 1.0, [rng.random(size) for size in process.sizes])
        assert found.value <= best + 1e-12
        assert found.times.sum() == pytest.approx(1.0)
        assert found.value == pytest.approx(found.quality - found.cost)


def test_vote_agrees_with_the_published_table():
    process = stopping.process(vote_env())
    assert sum(process.sizes) == 603
    picking = known.vote(*known._vote_numbers(vote_env()), pick=True)
    for price, value, free, k, best in ((1e-6, 0.6945, 0.6980, 7, 0.6591), (2e-6, 0.6504, 0.6514, 4, 0.6068)):
        assert stopping.snell(vote_env(), price).value == pytest.approx(value, abs=5e-4)
        assert oracle.snell(picking, price).value == pytest.approx(free, abs=5e-4)
        found = oracle.fixed(process, price)
        assert (found[0], found[1].value) == (k, pytest.approx(best, abs=5e-4))
    mean_draws = oracle.worth(process, 1e-6, stopping.snell(process, 1e-6).stops).cost / 10_000
    assert mean_draws == pytest.approx(5.6, abs=0.05)


@pytest.mark.parametrize("price", [0.0, 1e-6, 2e-6])
def test_prophet_full_information_snell_and_rules_stand_in_order(price):
    process = stopping.process(vote_env())
    ladder = [
        stopping.prophet(vote_env(), price),
        stopping.full_information(vote_env(), price),
        stopping.snell(vote_env(), price).value,
        oracle.threshold(process, price)[1].value,
        oracle.fixed(process, price)[1].value,
    ]
    assert all(above >= below - 1e-9 for above, below in itertools.pairwise(ladder))
    assert ladder[0] > ladder[2]
    # One draw, by hand: right with m = .555, whatever is known.
    once = oracle.worth(process, price, [np.full(size, t >= 1) for t, size in enumerate(process.sizes)])
    assert once.value == pytest.approx(0.555 - price * 10_000, abs=1e-9)
    told = sum(w * oracle.worth(case, price, [np.full(size, t >= 1) for t, size in enumerate(case.sizes)]).value
               for w, case in known.full(vote_env()))  # fmt: skip
    assert told == pytest.approx(0.555 - price * 10_000, abs=1e-4)


@pytest.mark.parametrize("law", ["Additive-v0", "Majority-v0", "Chain-v0"])
@pytest.mark.parametrize("price", [0.0, 2e-4, 1e-3])
def test_control_worlds_have_their_closed_form(law, price):
    env = ddpomdp.make(law, topology="single", price_token=price)
    rows, value = optimal_stop(env)
    best = stopping.snell(env, price)
    assert best.value == pytest.approx(value, abs=1e-6)
    assert stopping.prophet(env, price) >= stopping.full_information(env, price) - 1e-9 >= best.value - 2e-9
    if rows and price:
        stops = oracle.worth(stopping.process(env), price, best.stops).times
        assert stops[rows] == pytest.approx(1.0)


def test_a_chain_that_is_seen_is_the_burglar_s_problem():
    env = ddpomdp.make("Chain-v0", topology="single", chances=[0.5, 0.7])
    mu = mean_chance(env)
    k = min(math.ceil(mu / (1 - mu)), env.spec.num_subtasks)  # one more pays while mu (k + 1) > k
    assert stopping.full_information(env, 0.0) == pytest.approx(k / env.spec.num_subtasks * mu**k, abs=1e-6)


# Weitzman ----------------------------------------------------------------------------------------------------------


def grid(quantile, cost, places=2_000):
    at = (np.arange(places) + 0.5) / places
    return Box(quantile(at), np.full(places, 1 / places), cost)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (grid(lambda u: u, 0.08), 1 - math.sqrt(2 * 0.08)),
        (grid(lambda u: -np.log1p(-u) / 2, 0.1, 40_000), -math.log(2 * 0.1) / 2),
        (Box(np.asarray([0.0, 0.9]), np.asarray([0.7, 0.3]), 0.06), 0.9 - 0.06 / 0.3),
        (Box(np.asarray([0.0, 0.9]), np.asarray([0.7, 0.3]), 0.0), 0.9),
        (Box(np.asarray([0.0, 0.9]), np.asarray([0.7, 0.3]), 0.5), 0.27 - 0.5),
    ],
)
def test_reservation_values_have_their_closed_forms(box, expected):
    assert oracle.reservation(box) == pytest.approx(expected, abs=1e-3)


def any_order(boxes):
    """Value of opening boxes in any order, stopping at any time: by brute force over what is left."""

    @cache
    def value(left, best):
        go = [
            sum(p * value(left - {i}, max(best, x)) for x, p in zip(boxes[i].prizes, boxes[i].chances, strict=True))
            - boxes[i].cost
            for i in left
        ]
        return max([best, *go])

    return value(frozenset(range(len(boxes))), 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_weitzmans_rule_is_the_dynamic_programme_over_all_orders(seed):
    rng = np.random.default_rng(seed)
    boxes = [Box(rng.random(3), rng.dirichlet(np.ones(3)), 0.02 + 0.1 * rng.random()) for _ in range(4)]
    boxes.sort(key=lambda box: -oracle.reservation(box))
    process = oracle.boxes_in_order(boxes)
    best = oracle.snell(process, 1.0)
    assert best.value == pytest.approx(any_order(boxes), abs=1e-12)
    assert best.value == pytest.approx(oracle.pandora_value(boxes), abs=1e-12)
    levels = [oracle.reservation(box) for box in boxes]
    rule = [payoff >= levels[t] for t, payoff in enumerate(process.payoff[:-1])]
    assert oracle.worth(process, 1.0, [*rule, np.ones(process.sizes[-1])]).value == pytest.approx(best.value, abs=1e-12)
    backwards = oracle.snell(oracle.boxes_in_order(boxes[::-1]), 1.0).value
    assert backwards < best.value  # the order is part of the rule


def test_ten_uniform_boxes():
    costs = 0.01 + 0.01 * np.arange(10)
    boxes = [grid(lambda u: u, float(cost), 200) for cost in costs]
    process = oracle.boxes_in_order(boxes)
    assert oracle.snell(process, 1.0).value == pytest.approx(oracle.pandora_value(boxes), abs=1e-9)
    assert oracle.fixed(process, 1.0)[1].value < oracle.threshold(process, 1.0)[1].value < oracle.pandora_value(boxes)


def test_what_is_refused():
    with pytest.raises(ValueError, match="Math-v0 with oracle_form='vote'"):
        stopping.process(ddpomdp.make("Math-v0", preset="tiny"))
    with pytest.raises(ValueError, match="price: got -1"):
        stopping.snell(vote_env(), -1.0)
    with pytest.raises(ValueError, match="depend on the state"):
        oracle.prophet(
            Process(
                (np.zeros(2), np.zeros(1)),
                (np.asarray([0.0, 1.0]),),
                (np.zeros((2, 1), int),),
                (np.ones((2, 1)),),
                np.asarray([0.5, 0.5]),
            ),
            1.0,
        )
    with pytest.raises(ValueError, match="add up to 1"):
        Process(
            (np.zeros(1), np.zeros(1)), (np.zeros(1),), (np.zeros((1, 1), int),), (np.full((1, 1), 0.5),), np.ones(1)
        )
    with pytest.raises(ValueError, match="layer 0 must hold 1 probabilities"):
        oracle.worth(random_process(0), 1.0, [np.asarray([np.nan])])
