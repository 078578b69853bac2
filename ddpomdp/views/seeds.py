"""Seeds of views: an episode is one whole number, and the number it had repeats it."""

from typing import Any

import gymnasium.utils.seeding
import jax
import numpy as np

LARGEST = 2**63 - 1


def checked(seed: Any, name: str = "seed") -> int | None:
    """A seed as a Python int, or None; ValueError naming `name` for anything but whole numbers 0 to 2**63 - 1."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST:
        raise ValueError(f"{name}: got {seed!r}, allowed: whole numbers 0 to {LARGEST}, or None")
    return int(seed)


def generator(seed: int | None) -> np.random.Generator:
    """The generator that unseeded resets after `reset(seed)` draw their episodes from, the same in every view."""
    return gymnasium.utils.seeding.np_random(seed)[0]


def drawn(generator: np.random.Generator) -> int:
    """The seed of the next unseeded episode."""
    return int(generator.integers(LARGEST, endpoint=True))


def words(seed: int) -> np.ndarray:
    """uint32[2]: an episode's key in two words, spread over all keys however close the seeds are."""
    return np.random.SeedSequence(seed).generate_state(2, np.uint32)


def key(words: jax.Array) -> jax.Array:
    """The typed key of uint32[2]."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")
