"""The stopping rules in use, each with one number that is tuned on training episodes.

A rule says from what the lead has seen until then whether it stops; `levels` lists the numbers that are tried. All are
replayed on the same suppressed episodes. Sources: docs/stopping.md. Axis letters: B episode, T decision.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddpomdp.options import choose
from ddpomdp_baselines.stopping.trajectories import Suppressed

LEVELS = 51  # of a threshold or a budget


@dataclass(frozen=True)
class Rule:
    """A family of rules: `levels(data)` to try, `wants(data, level)` bool[B, T] where it would stop."""

    what: str
    levels: Callable[[Suppressed], np.ndarray]
    wants: Callable[[Suppressed, float], np.ndarray]


def _quantiles(values: np.ndarray) -> np.ndarray:
    return np.unique(np.quantile(values, np.linspace(0, 1, LEVELS)))


def _decisions(data: Suppressed) -> np.ndarray:
    return np.arange(data.here.shape[1], dtype=np.float64)


def _time(data: Suppressed) -> np.ndarray:
    return np.broadcast_to(np.arange(data.here.shape[1]), data.here.shape)


def progress(data: Suppressed) -> np.ndarray:
    """bool[B, T]: confidence is higher than at any decision before; the first decision counts as progress."""
    best = np.maximum.accumulate(data.confidence, axis=1)
    return np.concatenate([np.ones((len(data), 1), bool), data.confidence[:, 1:] > best[:, :-1] + 1e-9], axis=1)


def idle(data: Suppressed) -> np.ndarray:
    """int[B, T]: decisions since the last progress."""
    time = _time(data)
    return time - np.maximum.accumulate(np.where(progress(data), time, 0), axis=1)


def stall(data: Suppressed) -> np.ndarray:
    """int[B, T]: a leaky counter, +1 without progress, else -1, at least 0 (as Magentic-One counts stalls)."""
    count, out = np.zeros(len(data), int), []
    for moved in progress(data).T:
        count = np.where(moved, np.maximum(count - 1, 0), count + 1)
        out.append(count)
    return np.stack(out, axis=1)


RULES: dict[str, Rule] = {
    "always": Rule("stop at the first decision", lambda data: np.zeros(1), lambda data, level: data.here),
    "never": Rule("go on to the end", lambda data: np.zeros(1), lambda data, level: np.zeros_like(data.here)),
    "fixed": Rule("stop at decision k", _decisions, lambda data, level: _time(data) >= level),
    "threshold": Rule(
        "stop once confidence reaches a level",
        lambda data: np.append(_quantiles(data.confidence[data.here]), np.inf),
        lambda data, level: data.confidence >= level,
    ),
    "patience": Rule(
        "stop after k decisions without progress",
        lambda data: 1 + _decisions(data),
        lambda data, level: idle(data) >= level,
    ),
    "stall": Rule(
        "stop when the leaky counter reaches k",
        lambda data: 1 + _decisions(data),
        lambda data, level: stall(data) >= level,
    ),
    "budget": Rule(
        "stop once so much is spent",
        lambda data: _quantiles(data.cost[data.here]),
        lambda data, level: data.cost >= level,
    ),
}


def times(wants: np.ndarray, data: Suppressed) -> np.ndarray:
    """int[B]: first decision at which one wants to stop; else the last one there is."""
    wants = wants & data.here
    return np.where(wants.any(axis=1), wants.argmax(axis=1), data.last)


def at(values: np.ndarray, time: np.ndarray) -> np.ndarray:
    """f64[B]: values [B, T] at times int[B]."""
    return np.take_along_axis(values, time[:, None], axis=1)[:, 0]


def tuned(name: str, data: Suppressed, price: float, kind: str = "realised") -> float:
    """The level of a rule with the best mean net payoff on these episodes; the first of equals."""
    choose("rule", name, RULES)
    rule, net = RULES[name], data.net(price, kind)
    levels = rule.levels(data)
    means = [at(net, times(rule.wants(data, level), data)).mean() for level in levels]
    return float(levels[int(np.argmax(means))])


def stop_times(name: str, level: float, data: Suppressed) -> np.ndarray:
    """int[B]: when the rule stops on these episodes."""
    choose("rule", name, RULES)
    return times(RULES[name].wants(data, level), data)


def hazard_value(net: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    """f64[B]: expected net payoff, of f64[B, T], of stopping at a random time with this marginal f64[T]."""
    return net @ marginal
