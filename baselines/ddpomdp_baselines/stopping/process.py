"""A finite stopping problem: what is paid for stopping in a state, what going on costs, and where it leads.

Decisions are made at t = 0 .. H; at H there is nothing left but to stop. Everything is numpy in f64, since a problem is
small and its solution is a reference for others. Axis letters: S state of a layer, K successor.
"""

from dataclasses import dataclass

import numpy as np

from ddpomdp.options import UsageError


@dataclass(frozen=True)
class Process:
    """Layers of states. Costs are in units (tokens, draws); a price turns them into quality points.

    Attributes:
      payoff: f64[S_t] for t = 0 .. H, expected quality of stopping there.
      cost: f64[S_t] for t < H, units spent by going on.
      child: int[S_t, K] for t < H, successors in the next layer.
      chance: f64[S_t, K] for t < H, their probabilities; rows add up to 1.
      start: f64[S_0], distribution of the first state.
    """

    payoff: tuple[np.ndarray, ...]
    cost: tuple[np.ndarray, ...]
    child: tuple[np.ndarray, ...]
    chance: tuple[np.ndarray, ...]
    start: np.ndarray

    def __post_init__(self) -> None:
        """Refuse layers that do not fit together."""
        last = len(self.payoff) - 1
        if last < 0 or not len(self.cost) == len(self.child) == len(self.chance) == last:
            sizes = [len(x) for x in (self.payoff, self.cost, self.child, self.chance)]
            raise UsageError(f"layers of payoff, cost, child, chance: got {sizes}, allowed: H + 1, H, H, H")
        for t in range(last):
            here, there = len(self.payoff[t]), len(self.payoff[t + 1])
            if self.cost[t].shape != (here,) or self.child[t].shape != self.chance[t].shape:
                raise UsageError(f"layer {t}: shapes of cost, child, chance do not fit {here} states")
            if not np.allclose(self.chance[t].sum(axis=1), 1.0, atol=1e-9) or np.any(self.chance[t] < 0):
                raise UsageError(f"layer {t}: chances must be at least 0 and add up to 1")
            if np.any((self.child[t] < 0) | (self.child[t] >= there)):
                raise UsageError(f"layer {t}: successors must be 0 .. {there - 1}")
        if self.start.shape != self.payoff[0].shape or not np.isclose(self.start.sum(), 1.0):
            raise UsageError("start: must be a distribution over the states of layer 0")

    @property
    def horizon(self) -> int:
        """H: the last decision's number."""
        return len(self.payoff) - 1

    @property
    def sizes(self) -> list[int]:
        """S_t of every layer."""
        return [len(payoff) for payoff in self.payoff]

    @property
    def offsets(self) -> np.ndarray:
        """int[H + 1]: number of the first state of each layer when all states are counted through."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    def ahead(self, t: int, values: np.ndarray) -> np.ndarray:
        """f64[S_t]: expectation of values f64[S_{t+1}] one step on."""
        return np.einsum("sk,sk->s", self.chance[t], values[self.child[t]])

    def sample(self, paths: int, seed: int) -> np.ndarray:
        """int[paths, H + 1]: states of paths on which nobody stops."""
        rng = np.random.default_rng(seed)
        state = rng.choice(len(self.start), size=paths, p=self.start)
        states = [state]
        for t in range(self.horizon):
            below = np.cumsum(self.chance[t][state], axis=1)
            k = np.minimum((rng.random(paths)[:, None] >= below).sum(axis=1), below.shape[1] - 1)
            state = self.child[t][state, k]
            states.append(state)
        return np.stack(states, axis=1)
