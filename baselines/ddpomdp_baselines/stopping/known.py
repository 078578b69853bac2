"""Environments whose stopping problem is known exactly: Math-v0 as a vote, and the control worlds.

`process` gives the problem on the lead's information. `full` gives that of a lead who is told the hidden facts of the
task as well, but not the luck to come: its value lies between Snell's and the prophet's. Costs are in tokens.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ddpomdp.env import Env
from ddpomdp.options import UsageError
from ddpomdp_baselines.stopping import oracle
from ddpomdp_baselines.stopping.process import Process

NODES = 64  # of the distribution of a hidden chance


def process(env: Env) -> Process:
    """The stopping problem of a lone lead on what it knows.

    Raises:
      ValueError: an environment whose problem is not known.
    """
    if env.id == "Math-v0" and env.options["oracle_form"] == "vote":
        return vote(*_vote_numbers(env))
    if _is_control(env):
        return _blind(env)
    raise UsageError(
        f"environment {env.id!r} with {env.options.get('topology')!r}: its stopping problem is not known; allowed: "
        "Math-v0 with oracle_form='vote', and Additive-v0, Majority-v0, Chain-v0 with topology 'single'"
    )


def full(env: Env) -> list[tuple[float, Process]]:
    """(weight, problem) of each case of the hidden facts; their mean is the full-information value."""
    if env.id == "Math-v0" and env.options["oracle_form"] == "vote":
        solves, _, loop, shares, tokens = _vote_numbers(env)
        rates = np.asarray(env.params.task.chance[-1], np.float64).reshape(NODES, -1).mean(axis=1)
        return [(1 / NODES, vote_told(solves, float(p), loop, shares, tokens)) for p in rates]
    if _is_control(env):
        return [(1.0, _seeing(env))]
    process(env)  # refuses
    raise AssertionError


def snell(env: Env | Process, price: float) -> oracle.Snell:
    """The best rule of an environment's (or a given) stopping problem on the lead's information.

    Args:
      env: an environment whose problem is known, or a `Process`.
      price: quality points per token (of a `Process`: per unit of its costs); what ends an episode costs every rule
        the same and is left out.
    """
    return oracle.snell(env if isinstance(env, Process) else process(env), price)


def full_information(env: Env, price: float) -> float:
    """Value of the best rule for a lead who knows the hidden facts of the task."""
    return math.fsum(weight * oracle.snell(case, price).value for weight, case in full(env))


def prophet(env: Env | Process, price: float) -> float:
    """Value for a lead who knows everything to come, payoffs being what they are once hidden facts are known.

    Of a `Process`: on its own payoffs.
    """
    if isinstance(env, Process):
        return oracle.prophet(env, price)
    return math.fsum(weight * oracle.prophet(case, price) for weight, case in full(env))


# Math-v0 as a vote -------------------------------------------------------------------------------------------------

Counts = tuple[int, ...]


def _vote_numbers(env: Env) -> tuple[int, tuple[float, float], float, tuple[float, ...], float]:
    """Most draws, Beta of the pass rate, share of failures without an answer, wrong shares, tokens of a draw."""
    from ddpomdp_envs.math import MODELS, wrong_shares

    model = MODELS[env.options["model"]]
    beta = model.mean * model.spread, (1 - model.mean) * model.spread
    shares = tuple(float(share) for share in wrong_shares(model.modal, 4))
    return env.rules.passes, beta, model.loop, shares, float(env.params.task.flat_tokens)


def vote_states(draws: int, values: int = 4) -> list[Counts]:
    """Sorted counts of the answer values, then the number of draws without an answer; `draws` together."""
    sorted_counts = (c for c in itertools.product(range(draws + 1), repeat=values) if _falls(c) and sum(c) <= draws)
    return [(*counts, draws - sum(counts)) for counts in sorted_counts]


def _falls(counts: Counts) -> bool:
    return all(a >= b for a, b in itertools.pairwise(counts))


def vote(
    draws: int, beta: tuple[float, float], loop: float, shares: tuple[float, ...], tokens: float, pick: bool = False
) -> Process:
    """Draws of one problem's answer until the lead stops and takes the majority; on what the lead knows.

    The pass rate p ~ Beta(a, b) is hidden; a draw is right with p, else without an answer with `loop`, else one of the
    wrong values by `shares`. Labels are exchangeable, so sorted counts are enough. With counts n_i, N their sum and n_0
    draws without an answer, label i is right with weight

        L_i = B(a + n_i, b + N - n_i + n_0) / B(a, b) loop^n_0 (1 - loop)^(N - n_i) E[prod_v q_v^(n_v)]

    over the ways to give the wrong values to the other labels. Payoff: mean weight of the labels tied at the top.

    Args:
      draws: most draws.
      beta: (a, b).
      loop: share of failures without an answer.
      shares: of the wrong values.
      tokens: cost of a draw.
      pick: the lead may answer the likeliest label instead of the majority.
    """
    values = len(shares) + 1
    layers = [vote_states(t, values) for t in range(draws + 1)]
    index = [{state: i for i, state in enumerate(layer)} for layer in layers]
    weights = [np.asarray([_weights(state, beta, loop, shares) for state in layer]) for layer in layers]
    payoff = []
    for layer, weight in zip(layers, weights, strict=True):
        counts = np.asarray(layer)[:, :values]
        share = weight / weight.sum(axis=1, keepdims=True)
        top = counts == counts[:, :1]
        paid = share.max(axis=1) if pick else (share * top).sum(axis=1) / top.sum(axis=1)
        payoff.append(np.where(counts[:, 0] > 0, paid, 0.0))
    child, chance, cost = [], [], []
    for t in range(draws):
        successors = np.asarray([[index[t + 1][_after(state, k)] for k in range(values + 1)] for state in layers[t]])
        # The weight of a sequence of draws one longer, over that of this one; a sorted state stands for one of many
        # equally likely sequences.
        longer = np.asarray(
            [[sum(_weights(_raised(s, k), beta, loop, shares)) for k in range(values + 1)] for s in layers[t]]
        )
        child.append(successors)
        chance.append(longer / weights[t].sum(axis=1, keepdims=True))
        cost.append(np.full(len(layers[t]), tokens))
    return Process(tuple(payoff), tuple(cost), tuple(child), tuple(chance), np.ones(1))


def _raised(state: Counts, k: int) -> Counts:
    return (*state[:k], state[k] + 1, *state[k + 1 :])


def _after(state: Counts, k: int) -> Counts:
    """The sorted state after a draw of the label at place k, or without an answer."""
    *counts, none = _raised(state, k)
    return (*sorted(counts, reverse=True), none)


@cache
def _weights(state: Counts, beta: tuple[float, float], loop: float, shares: tuple[float, ...]) -> tuple[float, ...]:
    """L_i of every label; counts need not be sorted."""
    *counts, none = state
    total, (a, b) = sum(counts), beta
    if none and loop == 0:
        return (0.0,) * len(counts)
    out = []
    for i, n in enumerate(counts):
        others = [c for j, c in enumerate(counts) if j != i]
        ways = list(itertools.permutations(shares))
        mix = math.fsum(math.prod(q**c for q, c in zip(way, others, strict=True)) for way in ways) / len(ways)
        log = _log_beta(a + n, b + total - n + none) - _log_beta(a, b)
        out.append(math.exp(log) * loop**none * (1 - loop) ** (total - n) * mix)
    return tuple(out)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def vote_told(draws: int, p: float, loop: float, shares: tuple[float, ...], tokens: float) -> Process:
    """The same for a lead who is told the pass rate and which value is which; counts in the order right, wrong ones."""
    values = len(shares) + 1
    chances = np.asarray([p, *((1 - p) * (1 - loop) * q for q in shares), (1 - p) * loop])
    return _told(draws, values, tokens, tuple(chances.tolist()))


def _told(draws: int, values: int, tokens: float, chances: tuple[float, ...]) -> Process:
    layers, payoff, child = _told_states(draws, values)
    chance = tuple(np.broadcast_to(chances, places.shape) for places in child)
    cost = tuple(np.full(len(layer), tokens) for layer in layers[:-1])
    return Process(payoff, cost, child, chance, np.ones(1))


@cache
def _told_states(draws: int, values: int) -> tuple[Any, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """States, payoffs and successors, which do not depend on the chances."""
    every: list[list[Counts]] = [
        [(*c, t - sum(c)) for c in itertools.product(range(t + 1), repeat=values) if sum(c) <= t]
        for t in range(draws + 1)
    ]
    payoff = []
    for layer in every:
        counts = np.asarray(layer)[:, :values]
        top = counts == counts.max(axis=1, keepdims=True)
        payoff.append(np.where(counts.max(axis=1) > 0, top[:, 0] / top.sum(axis=1), 0.0))
    index = [{state: i for i, state in enumerate(layer)} for layer in every]
    child = tuple(
        np.asarray([[index[t + 1][_raised(state, k)] for k in range(values + 1)] for state in every[t]])
        for t in range(draws)
    )
    return every, tuple(payoff), child


# Control worlds ----------------------------------------------------------------------------------------------------


def _is_control(env: Env) -> bool:
    from ddpomdp_envs.control import LAWS

    return env.id in LAWS and env.options["topology"] == "single"


def _blind(env: Env, p: float = 0.5) -> Process:
    """A lone lead is never told whether a subtask is right: one state per layer."""
    rows, tokens = env.spec.num_subtasks, _row_tokens(env)
    return _chain(env, [np.asarray([paid]) for paid in _payoffs(env, p)], lambda k: (0,), np.ones(1), rows, tokens)


def _seeing(env: Env, p: float = 0.5) -> Process:
    """A lead who sees which subtasks are right: state, the number of right ones."""
    from ddpomdp_envs.control_exact import _majority, mean_chance

    rows, mean = env.spec.num_subtasks, mean_chance(env, p)
    if env.options["decisive"]:
        raise UsageError("decisive: full information is worked out for equal weights only, allowed: 0")
    payoff = []
    for k in range(rows + 1):
        right = np.arange(k + 1)
        if env.id == "Additive-v0":
            payoff.append(right / rows)
        elif env.id == "Chain-v0":
            payoff.append(np.where(right == k, k / rows, 0.0))
        else:
            paid = _majority(right, k, float(env.params.task.threshold))
            payoff.append(paid if k else np.zeros(1))
    moves = np.asarray([1 - mean, mean])
    return _chain(env, payoff, lambda k: (k, k + 1), moves, rows, _row_tokens(env))


def _chain(
    env: Env,
    payoff: list[np.ndarray],
    successors: Callable[[int], tuple[int, ...]],
    moves: np.ndarray,
    rows: int,
    tokens: float,
) -> Process:
    child = tuple(np.asarray([successors(s) for s in range(len(payoff[t]))]) for t in range(rows))
    chance = tuple(np.broadcast_to(moves, places.shape) for places in child)
    cost = tuple(np.full(len(payoff[t]), tokens) for t in range(rows))
    return Process(tuple(payoff), cost, child, chance, np.ones(1))


def _row_tokens(env: Env) -> float:
    calls = env.options["decisions"] + env.options["irrelevant"]
    return float(env.params.task.call_tokens) * calls


def _payoffs(env: Env, p: float) -> Iterator[float]:
    """Quality after each number of subtasks, prices left out."""
    from ddpomdp_envs.control_exact import stop_value

    price = float(env.params.price_token)
    for rows in range(env.spec.num_subtasks + 1):
        yield stop_value(env, rows, p) + price * _row_tokens(env) * rows
