"""Search-v0 with a lone lead who searches row after row: its stopping problem, turn by turn.

What is hidden: which rows are hard, and which of the values found are right. With M rows, after t turns of searching,

    state (d, n, R, W): d rows are done, n turns went into the next one, R right and W wrong values were found
    a turn fails with phi; else it is the row's last with P(L = n + 1 | L > n), L = ceil(LN(mean mu, .6))
    the last turn of a row finds a right value with a, a wrong one with w (1 - a), else nothing;
        a = q_t, of a hard row less by a factor
    stopping pays E[2 R / (R + W' + M)], W' ~ Bin(W, 1 - r): merging rejects a wrong value with r

The lead sees d, n and R + W = f. `seen` has the states (t, d, n, f). If q does not fall with t and confidence says
nothing (`plain`), that is all that matters of what the lead sees, and Snell's value is exact; else it is a declared
statistic, and `bounds` has what is known of the value. Above it: `told` is the problem of one who sees R and W as well,
`full_information` the value of one who also knows which rows are hard, `prophet` that of one who knows all to come.
"""

import itertools
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


@dataclass(frozen=True)
class Laws:
    """The numbers of the problem.

    Attributes:
      rows: M.
      turns: H, most turns of searching.
      fault: phi.
      lasts: chance that turn n + 1 is a row's last, by n = 0 .. longest - 1; the last of them is 1.
      q: q_t for t < H.
      hard: share of hard rows.
      less: their factor.
      wrong: w.
      reject: r.
      tokens: cost of a turn.
      merge: cost of merging at all, and per row found.
    """

    rows: int
    turns: int
    fault: float
    lasts: tuple[float, ...]
    q: tuple[float, ...]
    hard: float
    less: float
    wrong: float
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
    return Laws(
        rows=env.spec.num_subtasks,
        turns=turns,
        fault=float(task.fault),
        lasts=tuple((length / rest).tolist()),
        q=tuple(np.asarray(task.q, np.float64)[:turns].tolist()),
        hard=float(task.hard),
        less=float(task.hard_factor),
        wrong=float(task.wrong_rate[1]),
        reject=float(task.reject_wrong),
        tokens=float(task.call_tokens),
        merge=(float(params.charges.aggregate_tokens), float(params.charges.row_tokens)),
    )


def told(laws: Laws) -> Process:
    """The problem of a lead who is told which values are right. States of layer t: `states(laws, t)`."""
    factor = 1 - laws.hard + laws.hard * laws.less
    return _told(laws, (factor,) * laws.rows)


def full_information(laws: Laws, price: float) -> float:
    """Value of the best rule for a lead who is told which rows are hard, and which values are right.

    Raises:
      ValueError: more than ten rows.
    """
    if laws.rows > 10:
        raise UsageError(f"rows: got {laws.rows}, allowed with full information: up to 10")
    total = 0.0
    for hard in itertools.product((False, True), repeat=laws.rows):
        chance = math.prod(laws.hard if is_hard else 1 - laws.hard for is_hard in hard)
        if chance:
            problem = _told(laws, tuple(laws.less if is_hard else 1.0 for is_hard in hard))
            total += chance * oracle.snell(problem, price).value
    return total


def prophet(laws: Laws, price: float) -> float:
    """Value for a lead who knows every turn to come; payoffs are what they are once right and wrong are known."""
    problem = told(laws)
    # What merging costs lowers the payoff, and turns after the last row cost like others: nobody stops so late.
    payoff = tuple(paid - price * _merging(laws, states(laws, t)) for t, paid in enumerate(problem.payoff))
    cost = tuple(np.full(size, laws.tokens) for size in problem.sizes[:-1])
    return oracle.prophet(Process(payoff, cost, problem.child, problem.chance, problem.start), price)


def _told(laws: Laws, factors: tuple[float, ...]) -> Process:
    """The same with the factor of each row, in the order in which they are searched."""
    payoff, child = _ways(laws)
    lasts, of_row = np.asarray(laws.lasts), np.asarray((*factors, 0.0))
    chance, cost = [], []
    for t in range(laws.turns):
        here, after = states(laws, t), states(laws, t + 1)
        d = here[:, 0]
        over, last = d == laws.rows, lasts[here[:, 1]]
        right = laws.q[t] * of_row[d]
        ends = (1 - laws.fault) * last
        moves = [laws.fault, (1 - laws.fault) * (1 - last), ends * right, ends * laws.wrong * (1 - right)]
        moves = np.stack(
            [*(np.broadcast_to(move, d.shape) for move in moves), ends * (1 - laws.wrong) * (1 - right)], 1
        )
        chance.append(np.where(over[:, None], np.eye(5)[0], moves))
        # What merging costs more is due with the value that makes it so.
        more = _merging(laws, after)[child[t]] - _merging(laws, here)[:, None]
        cost.append(np.where(over, 0.0, laws.tokens) + np.sum(chance[-1] * more, axis=1))
    return Process(payoff, tuple(cost), child, tuple(chance), np.ones(1))


@cache
def states(laws: Laws, t: int) -> np.ndarray:
    """int[S, 4]: all states (d, n, R, W) after t turns; once all rows are done nothing moves, and nothing costs."""
    longest = len(laws.lasts)
    return np.asarray(
        [
            (d, n, right, wrong)
            for d in range(min(laws.rows, t) + 1)
            for n in range(min(t - d, longest - 1) + 1 if d < laws.rows else 1)
            for right in range(d + 1)
            for wrong in range(d - right + 1)
        ]
    )


def labels(laws: Laws, t: int) -> np.ndarray:
    """int[S, 3]: what the lead sees of each of these states, (d, n, f)."""
    d, n, right, wrong = states(laws, t).T
    return np.stack([d, n, right + wrong], axis=1)


@cache
def _ways(laws: Laws) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """(payoffs f64[S_t], successors int[S_t, 5]: after a fault, a turn more, a right value, a wrong one, nothing)."""
    layers = [states(laws, t).tolist() for t in range(laws.turns + 1)]
    payoff = tuple(np.asarray([_pays(laws, right, wrong) for _, _, right, wrong in layer]) for layer in layers)
    child = []
    for t in range(laws.turns):
        index = {tuple(state): i for i, state in enumerate(layers[t + 1])}
        moves = []
        for d, n, right, wrong in layers[t]:
            same = (d, n, right, wrong)
            ways = [same] * 5
            if d < laws.rows:
                further = (d, n + 1, right, wrong) if n + 1 < len(laws.lasts) else same
                ways = [same, further, *((d + 1, 0, right + r, wrong + w) for r, w in ((1, 0), (0, 1), (0, 0)))]
            moves.append([index[way] for way in ways])
        child.append(np.asarray(moves))
    return payoff, tuple(child)


def _merging(laws: Laws, states: np.ndarray) -> np.ndarray:
    """f64[S]: what merging costs there."""
    found = states[:, 2] + states[:, 3]
    return np.where(found > 0, laws.merge[0] + laws.merge[1] * found, 0.0)


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
        names, group = np.unique(labels(laws, t), axis=0, return_inverse=True)
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
    names = np.unique(labels(laws, t), axis=0)
    return {(int(d), int(n), int(f)): i for i, (d, n, f) in enumerate(names)}


def bounds(laws: Laws, price: float) -> tuple[float, float]:
    """(worth of the best rule on (t, d, n, f) as found by `seen`, value for a lead who is told what is right).

    Snell's value on all that the lead sees lies between them; the first is exactly it where laws are plain.
    """
    merged, groups = seen(laws)
    stops = oracle.snell(merged, price).stops
    rule = [stop[group] for stop, group in zip(stops, groups, strict=True)]
    return oracle.worth(told(laws), price, rule).value, oracle.snell(told(laws), price).value
