"""Search-v0 with a lone lead who searches row after row: its stopping problem, turn by turn.

What is hidden: of each row found so far, whether its value is right. With M rows, after t turns of searching,

    state (d, n, R, W): d rows are done, n turns went into the next one, R right and W wrong values were found
    a turn fails with phi; else it is the row's last with P(L = n + 1 | L > n), L = ceil(LN(mean mu, .6))
    the last turn of a row finds a right value with a_t, a wrong one with b_t, else nothing:
        a_t = E[q],  b_t = w E[1 - q],  over rows that are hard (q_t less by a factor) and rows that are not
    stopping pays E[2 R / (R + W' + M)], W' ~ Bin(W, 1 - r): merging rejects a wrong value with r

The lead sees d, n and R + W = f. `told` is the problem of one who sees R and W as well: an upper bound of Snell's
value. `seen` has the states (t, d, n, f). If q does not fall with t and confidence says nothing (`plain`), that is all
that matters of what the lead sees, and Snell's value is exact; else it is a declared statistic, and `bounds` has what
is known of the value.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from ddpomdp.env import Env
from ddpomdp.options import UsageError
from ddpomdp.params import Params
from ddpomdp.pytree import replace
from ddpomdp_baselines.stopping import oracle
from ddpomdp_baselines.stopping.process import Process

State = tuple[int, int, int, int]  # d, n, R, W


@dataclass(frozen=True)
class Laws:
    """The numbers of the problem.

    Attributes:
      rows: M.
      turns: H, most turns of searching.
      fault: phi.
      lasts: chance that turn n + 1 is a row's last, by n = 0 .. longest - 1; the last of them is 1.
      right: a_t for t < H.
      wrong: b_t for t < H.
      reject: r.
      tokens: cost of a turn.
      merge: cost of merging at all, and per row found.
    """

    rows: int
    turns: int
    fault: float
    lasts: tuple[float, ...]
    right: tuple[float, ...]
    wrong: tuple[float, ...]
    reject: float
    tokens: float
    merge: tuple[float, float]


def plain(params: Params) -> Params:
    """The same with a lead that does not tire (q as at the start) and whose confidence says nothing."""
    task: Any = params.task
    q = jnp.full_like(task.q, task.q[0])
    return replace(params, task=replace(task, q=q, confidence=jnp.stack([task.confidence[0]] * 2)))


def is_plain(params: Params) -> bool:
    """Whether these are such laws."""
    task: Any = params.task
    q, confidence = np.asarray(task.q), np.asarray(task.confidence)
    return bool(np.all(q == q[0]) and np.array_equal(confidence[0], confidence[1]))


def laws(env: Env, turns: int, params: Params | None = None) -> Laws:
    """The numbers of Search-v0 with topology `single`, without poison, unanswerable rows and common errors.

    Args:
      env: the environment.
      turns: most turns of searching.
      params: default the environment's.
    """
    from ddpomdp_envs.search import LEAD

    params = env.params if params is None else params
    if env.id != "Search-v0" or env.options["topology"] != "single":
        raise UsageError(
            f"environment {env.id!r} with {env.options.get('topology')!r}, allowed: Search-v0 with 'single'"
        )
    task: Any = params.task
    for name in ("poison", "unanswerable", "correlation"):
        if float(getattr(task, name)) != 0.0:
            raise UsageError(f"{name}: got {float(getattr(task, name)):g}, allowed in the stopping problem: 0")
    if not 1 <= turns <= int(task.limit[LEAD]):
        raise UsageError(f"turns: got {turns}, allowed: 1 to {int(task.limit[LEAD])}")
    length = np.bincount(np.asarray(task.length))[1:] / len(task.length)
    rest = np.cumsum(length[::-1])[::-1]
    q = np.asarray(task.q, np.float64)[:turns]
    hard, less, wrong = float(task.hard), float(task.hard_factor), float(task.wrong_rate[1])
    mean_q = (1 - hard) * q + hard * less * q
    return Laws(
        rows=env.spec.num_subtasks,
        turns=turns,
        fault=float(task.fault),
        lasts=tuple((length / rest).tolist()),
        right=tuple(mean_q.tolist()),
        wrong=tuple((wrong * (1 - mean_q)).tolist()),
        reject=float(task.reject_wrong),
        tokens=float(task.call_tokens),
        merge=(float(params.charges.aggregate_tokens), float(params.charges.row_tokens)),
    )


@cache
def told(laws: Laws) -> Process:
    """The problem of a lead who is told which values are right. States of layer t: `states(laws, t)`."""
    layers = [states(laws, t) for t in range(laws.turns + 1)]
    index = [{state: i for i, state in enumerate(layer)} for layer in layers]
    child, chance, cost = [], [], []
    for t in range(laws.turns):
        moves = [_moves(laws, t, state) for state in layers[t]]
        child.append(np.asarray([[index[t + 1][after] for after, _ in ways] for ways in moves]))
        chance.append(np.asarray([[p for _, p in ways] for ways in moves]))
        # What merging costs more is due with the value that makes it so.
        cost.append(
            np.asarray(
                [
                    sum(p * (_merging(laws, after) - _merging(laws, state)) for after, p in ways) + _turn(laws, state)
                    for state, ways in zip(layers[t], moves, strict=True)
                ]
            )
        )
    payoff = tuple(np.asarray([_pays(laws, state[2], state[3]) for state in layer]) for layer in layers)
    return Process(payoff, tuple(cost), tuple(child), tuple(chance), np.ones(1))


def states(laws: Laws, t: int) -> list[State]:
    """All states after t turns; once all rows are done nothing moves, and nothing costs."""
    longest = len(laws.lasts)
    return [
        (d, n, right, wrong)
        for d in range(min(laws.rows, t) + 1)
        for n in range(min(t - d, longest - 1) + 1 if d < laws.rows else 1)
        for right in range(d + 1)
        for wrong in range(d - right + 1)
    ]


def labels(laws: Laws, t: int) -> list[tuple[int, int, int]]:
    """What the lead sees of each of these states: (d, n, f)."""
    return [(d, n, right + wrong) for d, n, right, wrong in states(laws, t)]


def _moves(laws: Laws, t: int, state: State) -> list[tuple[State, float]]:
    d, n, right, wrong = state
    if d == laws.rows:
        return [(state, 1.0)] + [(state, 0.0)] * 4
    on, last = 1 - laws.fault, laws.lasts[n]
    a, b = laws.right[t], laws.wrong[t]
    further = (d, n + 1, right, wrong) if last < 1 else state
    return [
        (state, laws.fault),
        (further, on * (1 - last)),
        ((d + 1, 0, right + 1, wrong), on * last * a),
        ((d + 1, 0, right, wrong + 1), on * last * b),
        ((d + 1, 0, right, wrong), on * last * (1 - a - b)),
    ]


def _turn(laws: Laws, state: State) -> float:
    return laws.tokens if state[0] < laws.rows else 0.0


def _merging(laws: Laws, state: State) -> float:
    found = state[2] + state[3]
    return laws.merge[0] + laws.merge[1] * found if found else 0.0


def _pays(laws: Laws, right: int, wrong: int) -> float:
    stand = 1 - laws.reject
    ways = (math.comb(wrong, w) * stand**w * laws.reject ** (wrong - w) for w in range(wrong + 1))
    return math.fsum(p * 2 * right / (right + w + laws.rows) for w, p in enumerate(ways))


@cache
def seen(laws: Laws) -> tuple[Process, tuple[np.ndarray, ...]]:
    """The problem on (t, d, n, f), and for each layer which of its states each of `told`'s is.

    Payoffs are means over what is hidden, as likely as it is when nobody stops.
    """
    process, groups, sizes = told(laws), [], []
    for t in range(laws.turns + 1):
        names, group = np.unique(np.asarray(labels(laws, t)), axis=0, return_inverse=True)
        groups.append(group.reshape(-1))
        sizes.append(len(names))
    here, payoff, cost, child, chance = process.start, [], [], [], []
    for t in range(laws.turns + 1):
        weight = np.bincount(groups[t], weights=here, minlength=sizes[t])
        # A state that is never reached counts all its cases alike.
        inside = np.where(weight[groups[t]] > 0, here / np.maximum(weight[groups[t]], 1e-300), 0.0)
        alone = 1.0 / np.bincount(groups[t])[groups[t]]
        inside = np.where(weight[groups[t]] > 0, inside, alone)
        mean = lambda x, inside=inside, t=t: np.bincount(groups[t], weights=inside * x, minlength=sizes[t])  # noqa: E731
        payoff.append(mean(process.payoff[t]))
        if t == laws.turns:
            break
        cost.append(mean(process.cost[t]))
        chance.append(np.stack([mean(p) for p in process.chance[t].T], axis=1))
        first = np.unique(groups[t], return_index=True)[1]  # all of a group go to the same groups
        child.append(groups[t + 1][process.child[t][first]])
        here, on = np.zeros(len(process.payoff[t + 1])), here
        np.add.at(here, process.child[t], process.chance[t] * on[:, None])
    merged = Process(tuple(payoff), tuple(cost), tuple(child), tuple(chance), np.ones(1))
    return merged, tuple(groups)


def places(laws: Laws, t: int) -> dict[tuple[int, int, int], int]:
    """Number of each (d, n, f) in layer t of `seen`."""
    names = np.unique(np.asarray(labels(laws, t)), axis=0)
    return {(int(d), int(n), int(f)): i for i, (d, n, f) in enumerate(names)}


def bounds(laws: Laws, price: float) -> tuple[float, float]:
    """(worth of the best rule on (t, d, n, f) as found by `seen`, value for a lead who is told what is right).

    Snell's value on all that the lead sees lies between them; the first is exactly it where laws are plain.
    """
    merged, groups = seen(laws)
    stops = oracle.snell(merged, price).stops
    rule = [stop[group] for stop, group in zip(stops, groups, strict=True)]
    return oracle.worth(told(laws), price, rule).value, oracle.snell(told(laws), price).value
