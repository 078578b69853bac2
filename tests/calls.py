"""Actions for the tests of the views: good ones that make teams grow and shrink, and bad ones."""

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from ddpomdp.harness import DESPAWN, SPAWN, STOP


def tools_of(env):
    return env.env.harness.menu[:, 0]


def choose(rng, env, mask, stop=0.0):
    """A legal action; births and despawns half of the time where they are legal, `stop` seldom or never."""
    legal = np.flatnonzero(mask)
    tools = tools_of(env)[legal]
    if rng.random() < stop and (tools == STOP).any():
        return int(legal[tools == STOP][0])
    legal, tools = legal[tools != STOP], tools[tools != STOP]
    tool = rng.choice(np.unique(tools))
    churn = [t for t in (SPAWN, DESPAWN) if t in tools]
    if churn and rng.random() < 0.5:
        tool = rng.choice(churn)
    return int(rng.choice(legal[tools == tool]))


def bad_value(rng, size):
    """(action, what the error must say)"""
    kinds = [
        (lambda: int(rng.integers(size, 2**40)), "allowed: 0 to"),
        (lambda: -int(rng.integers(1, 2**40)), "allowed: 0 to"),
        (lambda: 2 ** int(rng.integers(63, 200)), "64 bits"),
        (lambda: np.int64(rng.integers(size, 2**62)), "allowed: 0 to"),
        (lambda: np.int8(-rng.integers(1, 128)), "allowed: 0 to"),
        (lambda: np.uint64(2**64 - 1), "allowed: 0 to"),
        (lambda: float(rng.normal()), "whole number"),
        (lambda: float("nan"), "whole number"),
        (lambda: np.float32(rng.normal()), "dtype float32"),
        (lambda: bool(rng.integers(2)), "whole number"),
        (lambda: np.bool_(True), "dtype bool"),
        (lambda: rng.integers(0, size, int(rng.integers(1, 4))), "shape"),
        (lambda: np.zeros((1, 1), int), "shape"),
        (lambda: np.array([], int), "shape"),
        (lambda: None, "whole number"),
        (lambda: "3", "whole number"),
        (lambda: [0], "whole number"),
        (lambda: {"tool": "wait"}, "whole number"),
        (lambda: np.array("x"), "dtype"),
        (lambda: np.array(None), "dtype object"),
    ]
    make, said = kinds[rng.integers(len(kinds))]
    return make(), said


def same_episodes(episode, one, two, seeds):
    """Play both with the same actions by `episode(env, seed, rng)`; (seed, step) of the first difference, or None."""
    for seed in seeds:
        streams = (episode(env, seed, np.random.default_rng(seed)) for env in (one, two))
        for step, (a, b) in enumerate(zip(*streams, strict=True)):
            if not data_equivalence(a, b, exact=True):
                return seed, step
    return None
