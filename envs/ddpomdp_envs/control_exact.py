"""What is known of the control worlds without playing them: E[R | d], signal-to-noise, the optimal stop.

Let every decision choose 1 with probability p and every subtask be reported. A subtask with D counting decisions is
right with probability the mean of its choices' chances q, so x_1 .. x_M are independent with mean mu = (1 - p) q_0 +
p q_1. Given that one of the decisions of subtask j is d, x_j has mean mu_d = mu + (q_d - mu) / D, and nothing else
changes; given an irrelevant decision, nothing does. Hence, with weights w and B_n(mu) a binomial variable:

    Additive-v0   E[R | d] = mu + w_j (mu_d - mu)
    Majority-v0   E[R | d] = mu_d h(B_{M-1}(mu) + 1) + (1 - mu_d) h(B_{M-1}(mu)),
                  h(b) = P(b > threshold M) + P(b = threshold M) / 2
    Chain-v0      E[R | d] = mu_d mu^(M-1)

Variances given d follow the same way, from E[R^2 | d]. Everything here is numpy in f64.
"""

import math
from typing import Any

import numpy as np

from ddpomdp.env import Env
from ddpomdp.options import UsageError, number, whole
from ddpomdp_envs.control import LAWS

Z95 = 1.6448536269514722  # standard normal quantile of 0.95


def mean_chance(env: Env, p: float = 0.5, choice: int | None = None) -> float:
    """Chance that a subtask is right: mu, or mu_d where one of its counting decisions is `choice`."""
    low, high = (float(x) for x in np.asarray(_task(env).chances, np.float64))
    number("p", p, 0.0, 1.0)
    mean = (1 - p) * low + p * high
    if choice is None:
        return mean
    whole("choice", choice, 0, 1)
    return mean + ((low, high)[choice] - mean) / env.options["decisions"]


def expected_return(env: Env, p: float = 0.5, choice: int | None = None, row: int = -1) -> float:
    """E[R], or E[R | one counting decision of subtask `row` is `choice`], where the whole team reports.

    Args:
      env: a control world without prices.
      p: probability of choice 1 of all other decisions.
      choice: 0, 1, or None: nothing is given.
      row: the decision's subtask; it matters where Additive-v0 has a decisive one.

    Raises:
      ValueError: another environment, one with prices, or values out of range.
    """
    return _moments(env, p, choice, row)[0]


def spread(env: Env, p: float = 0.5, choice: int | None = None, row: int = -1) -> float:
    """Standard deviation of R given what `expected_return` is given."""
    first, second = _moments(env, p, choice, row)
    return math.sqrt(max(second - first**2, 0.0))


def signal_to_noise(env: Env, p: float = 0.5, row: int = -1) -> dict[str, float]:
    """Signal-to-noise of the team's return as the credit of one counting decision.

    delta = E[R | 1] - E[R | 0];  sigma^2 = p Var(R | 1) + (1 - p) Var(R | 0);  d = delta / sigma;
    rho = sqrt(p (1 - p)) delta / sqrt(p (1 - p) delta^2 + sigma^2), the correlation of the credit with the true
    advantage (0 where delta is);  n95 = max(1, 1.645^2 / (p (1 - p) d^2)) rollouts for the right sign with
    probability 0.95.
    """
    delta = expected_return(env, p, 1, row) - expected_return(env, p, 0, row)
    sigma = math.sqrt(p * spread(env, p, 1, row) ** 2 + (1 - p) * spread(env, p, 0, row) ** 2)
    return {"delta": delta, "sigma": sigma, **derived(delta, sigma, p)}


def derived(delta: float, sigma: float, p: float = 0.5) -> dict[str, float]:
    """d, rho and n95 of an effect `delta` and a spread `sigma`, equations as in `signal_to_noise`."""
    share = p * (1 - p)
    total = math.sqrt(share * delta**2 + sigma**2)
    d = delta / sigma if sigma > 0 else (math.copysign(math.inf, delta) if delta else 0.0)
    rho = math.sqrt(share) * delta / total if total > 0 else 0.0
    n95 = max(1.0, Z95**2 / (share * d**2)) if d and share else math.inf
    return {"d": d, "rho": rho, "n95": n95}


def stop_value(env: Env, rows: int, p: float = 0.5) -> float:
    """E[R] of a lead alone that works on `rows` subtasks, reads and stops; the price of `work` is counted.

    Additive-v0: mu times the weight of these rows; Majority-v0: h(B_k(mu)) with k for M; Chain-v0: (k / M) mu^k.
    """
    whole("rows", rows, 0, env.spec.num_subtasks)
    if float(env.params.price_second) != 0:
        raise UsageError(f"price_second: got {float(env.params.price_second):g}; closed forms have none")
    task, mean = _task(env), mean_chance(env, p)
    calls = rows * (env.options["decisions"] + env.options["irrelevant"])
    price = float(env.params.price_token) * int(task.call_tokens) * calls
    if rows == 0:
        return 0.0
    if env.id == "Additive-v0":
        return mean * float(np.sum(np.asarray(task.weights, np.float64)[:rows])) - price
    if env.id == "Chain-v0":
        return rows / env.spec.num_subtasks * mean**rows - price
    return float(_binomial(rows, mean) @ _majority(np.arange(rows + 1), rows, float(task.threshold))) - price


def optimal_stop(env: Env, p: float = 0.5) -> tuple[int, float]:
    """(subtasks, E[R]): the best number of subtasks after which a lead alone stops; the smallest of those
    that agree to seven digits (numbers of an environment are f32).

    Nobody is told whether a subtask is right, so a rule that looks at results has nothing to look at, and the best
    fixed number is the optimal stop. Additive-v0 with equal weights: all or none, as mu / M beats the price of a
    subtask or not. Chain-v0 without price is the burglar's problem: one more pays while mu (k + 1) > k, hence
    k = ceil(mu / (1 - mu)) or M. Majority-v0 without price takes an odd number.
    """
    values = [stop_value(env, rows, p) for rows in range(env.spec.num_subtasks + 1)]
    best = int(np.argmax(np.round(values, 7)))
    return best, values[best]


def _moments(env: Env, p: float, choice: int | None, row: int) -> tuple[float, float]:
    """E[R] and E[R^2]."""
    task, rows, mean = _task(env), env.spec.num_subtasks, mean_chance(env, p)
    for name in ("price_token", "price_second"):
        if float(getattr(env.params, name)) != 0:
            raise UsageError(f"{name}: got {float(getattr(env.params, name)):g}; closed forms have no prices")
    whole("row", row, -rows, rows - 1)
    given = mean_chance(env, p, choice)
    if env.id == "Additive-v0":
        weights = np.asarray(task.weights, np.float64)
        weights /= weights.sum()
        chance = np.full(rows, mean)
        chance[row] = given
        first = float(weights @ chance)
        return first, first**2 + float(weights**2 @ (chance * (1 - chance)))
    if env.id == "Chain-v0":
        all_right = given * mean ** (rows - 1)
        return all_right, all_right
    others = _binomial(rows - 1, mean)
    moments = []
    for power in (1, 2):
        paid = _majority(np.arange(rows + 1), rows, float(task.threshold)) ** power
        moments.append(given * float(others @ paid[1:]) + (1 - given) * float(others @ paid[:-1]))
    return moments[0], moments[1]


def _majority(right: np.ndarray, reported: int, threshold: float) -> np.ndarray:
    """What Majority-v0 pays; compared in f32 as the environment does."""
    line = np.float32(threshold) * np.float32(reported)
    return np.where(right > line, 1.0, np.where(right == line, 0.5, 0.0))


def _binomial(n: int, chance: float) -> np.ndarray:
    """P(B = 0 .. n) by logarithms."""
    if chance in (0.0, 1.0):
        return np.eye(n + 1)[n if chance else 0]
    k = np.arange(n + 1)
    choose = np.asarray([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    return np.exp(choose + k * math.log(chance) + (n - k) * math.log1p(-chance))


def _task(env: Env) -> Any:
    if env.id not in LAWS:
        raise UsageError(f"environment {env.id!r} has no closed forms; allowed: {', '.join(LAWS)}")
    return env.params.task
