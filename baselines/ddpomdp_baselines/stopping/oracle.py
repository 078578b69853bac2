"""What a stopping problem is worth: to the best rule, to a given one, to somebody who knows the future.

Snell's envelope by backward induction (c_t: price x cost of going on):

    V_H = h_H;    C_t(s) = E[V_{t+1} | s] - c_t(s);    V_t(s) = max(h_t(s), C_t(s));    stop where C_t(s) <= h_t(s)

The prophet, who sees a whole path before choosing, gets E[max_t (h_t - c_0 - .. - c_{t-1})] >= V_0: an upper bound that
no rule reaches, and not a label to imitate. Standard results; Weitzman's rule: Econometrica 47 (1979).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpomdp.options import UsageError, number
from ddpomdp_baselines.stopping.process import Process

LARGEST = 20_000_000  # states times payoffs for which the prophet is worked out exactly


@dataclass(frozen=True)
class Snell:
    """The best rule of a problem at a price.

    Attributes:
      value: what it is worth, quality points.
      margin: f64[S_t] for t = 0 .. H, continuing less stopping; minus infinity at H.
    """

    value: float
    margin: tuple[np.ndarray, ...]

    @property
    def stops(self) -> tuple[np.ndarray, ...]:
        """bool[S_t]: where it stops; ties stop."""
        return tuple(margin <= 0 for margin in self.margin)


@dataclass(frozen=True)
class Worth:
    """What a rule comes to: value = quality - price x cost.

    Attributes:
      value: quality points.
      quality: expected payoff where it stops.
      cost: expected units spent.
      times: f64[H + 1], how likely it stops at each decision.
    """

    value: float
    quality: float
    cost: float
    times: np.ndarray


def snell(process: Process, price: float) -> Snell:
    """Snell's envelope; equation above.

    Args:
      process: the problem.
      price: quality points per unit of cost, at least 0.
    """
    number("price", price, 0.0, 1e9)
    value = process.payoff[-1]
    margins = [np.full(len(value), -np.inf)]
    for t in reversed(range(process.horizon)):
        margin = process.ahead(t, value) - price * process.cost[t] - process.payoff[t]
        value = process.payoff[t] + np.maximum(margin, 0.0)
        margins.append(margin)
    return Snell(float(process.start @ value), tuple(reversed(margins)))


def worth(process: Process, price: float, stops: Any) -> Worth:
    """What a rule is worth, exactly.

    Args:
      process: the problem.
      price: quality points per unit of cost.
      stops: f64 or bool [S_t] per layer, probability of stopping; whoever comes to layer H stops there.
    """
    number("price", price, 0.0, 1e9)
    here, quality, cost, times = process.start, 0.0, 0.0, []
    for t in range(process.horizon + 1):
        rate = np.ones(len(here)) if t == process.horizon else np.asarray(stops[t], np.float64)
        if rate.shape != here.shape or np.any(~((rate >= 0) & (rate <= 1))):
            raise UsageError(f"stops: layer {t} must hold {len(here)} probabilities")
        quality += float((here * rate) @ process.payoff[t])
        times.append(float(here @ rate))
        if t < process.horizon:
            on = here * (1.0 - rate)
            cost += float(on @ process.cost[t])
            here = np.zeros(len(process.payoff[t + 1]))
            np.add.at(here, process.child[t], process.chance[t] * on[:, None])
    return Worth(quality - price * cost, quality, cost, np.asarray(times))


def fixed(process: Process, price: float) -> tuple[int, Worth]:
    """The best number of steps after which one always stops, the smallest of equals."""
    best = None
    for k in range(process.horizon + 1):
        found = worth(process, price, [np.full(size, t >= k) for t, size in enumerate(process.sizes)])
        if best is None or found.value > best[1].value + 1e-12:
            best = k, found
    assert best is not None
    return best


def threshold(process: Process, price: float) -> tuple[float, Worth]:
    """The best level of the payoff from which on one stops, of all there are."""
    levels = np.unique(np.round(np.concatenate(process.payoff), 12))
    best = None
    for level in [*levels, np.inf]:
        found = worth(process, price, [payoff >= level - 1e-12 for payoff in process.payoff])
        if best is None or found.value > best[1].value + 1e-12:
            best = float(level), found
    assert best is not None
    return best


def prophet(process: Process, price: float) -> float:
    """E[max over t of payoff less what was spent until then], exactly; payoffs are the problem's expected ones.

    Costs may depend on the time only, not on the state.

    Raises:
      ValueError: costs that depend on the state, or too many states.
    """
    number("price", price, 0.0, 1e9)
    if any(np.ptp(cost) > 0 for cost in process.cost):
        raise UsageError("prophet: costs of this problem depend on the state, allowed: on the time only")
    spent = price * np.concatenate([[0.0], np.cumsum([cost[0] for cost in process.cost])])
    gains = [payoff - spent[t] for t, payoff in enumerate(process.payoff)]
    levels = np.unique(np.concatenate(gains))  # the best so far is one of these
    if (size := max(process.sizes) * len(levels)) > LARGEST:
        raise UsageError(f"prophet: got {size} pairs of state and payoff, allowed: up to {LARGEST}")
    value = np.maximum(levels[None, :], gains[-1][:, None])  # of a state, and the best before it
    for t in reversed(range(process.horizon)):
        ahead = np.zeros((len(gains[t]), len(levels)))
        for k in range(process.child[t].shape[1]):
            ahead += process.chance[t][:, k, None] * value[process.child[t][:, k]]
        place = np.searchsorted(levels, np.maximum(levels[None, :], gains[t][:, None]))
        value = np.take_along_axis(ahead, place, axis=1)
    return float(process.start @ value[:, 0])


# Weitzman's boxes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A box with a finite prize. Opening it costs `cost` units; the best prize seen can be kept at any time."""

    prizes: np.ndarray  # f64[K]
    chances: np.ndarray  # f64[K]
    cost: float


def reservation(box: Box, price: float = 1.0) -> float:
    """The value sigma at which opening is worth its cost: price x cost = E[(X - sigma)^+] (Weitzman 1979).

    E[(X - sigma)^+] falls from infinity to 0 and is linear between prizes, so it is inverted exactly. A box that costs
    nothing has the largest prize; one whose cost exceeds E[X] has a negative value and is worse than no prize at all.
    """
    order = np.argsort(box.prizes)
    prizes, chances = box.prizes[order], box.chances[order]
    due = price * box.cost
    if due <= 0:
        return float(prizes[-1])
    mass = np.cumsum(chances[::-1])[::-1]  # of prizes from each one on
    above = np.cumsum((chances * prizes)[::-1])[::-1] - mass * prizes  # E[(X - prize)^+], falling to 0
    if due >= above[0]:
        return float(chances @ prizes - due)
    k = int(np.flatnonzero(above >= due)[-1])
    return float(prizes[k] + (above[k] - due) / mass[k + 1])


def pandora_value(boxes: list[Box], price: float = 1.0) -> float:
    """What Weitzman's rule is worth: E[max(0, max_i min(X_i, sigma_i))], exactly (prizes independent, outside 0)."""
    levels, parts = {0.0}, []
    for box in boxes:
        capped = np.minimum(box.prizes, reservation(box, price))
        parts.append(capped)
        levels |= set(capped[capped > 0].tolist())
    points = np.asarray(sorted(levels))
    below = np.ones(len(points))
    for box, capped in zip(boxes, parts, strict=True):
        below *= np.asarray([box.chances[capped <= point].sum() for point in points])
    mass = np.diff(np.concatenate([[0.0], below]))
    return math.fsum(mass * points)


def boxes_in_order(boxes: list[Box]) -> Process:
    """The stopping problem of opening these boxes in this order; layer t: t are open, state: the best prize so far.

    In falling order of reservation values its Snell value is the value of Weitzman's rule, which may also choose the
    order, and its rule is his: stop where the best prize reaches the next reservation value.
    """
    if not boxes:
        raise UsageError("boxes: got none, allowed: one and more")
    levels: list[np.ndarray] = [np.zeros(1)]
    for box in boxes:
        levels.append(np.unique(np.maximum(levels[-1][:, None], box.prizes[None, :])))
    child = tuple(
        np.searchsorted(levels[t + 1], np.maximum(levels[t][:, None], box.prizes[None, :]))
        for t, box in enumerate(boxes)
    )
    chance = tuple(np.broadcast_to(box.chances, places.shape) for box, places in zip(boxes, child, strict=True))
    cost = tuple(np.full(len(levels[t]), float(box.cost)) for t, box in enumerate(boxes))
    return Process(tuple(levels), cost, child, chance, np.ones(1))
