"""Luck: where every random number of an episode comes from.

A life is named by its *lineage*, two uint32 words hashed from its parent's lineage, the parent's own turn number
and its place in that spawn. A draw is one hash of (turn number, purpose) under key XOR lineage: it depends neither on
who else lives nor on the tick in which the life gets to act. Lineages are names, not secrets; keys are never stored in
a state or shown to a policy.
"""

from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp

ROOT_LINEAGE = (0x243F6A88, 0x85A308D3)
TASK_LINEAGE = (0x13198A2E, 0x03707344)  # rows of the task hang below this name
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Purpose(IntEnum):
    """What a draw is for; two draws of one life and turn with different purposes are independent."""

    SERVICE = 0  # latency of the call
    HANDOUT = 1  # how a brief is understood
    WORK = 2  # progress of a task tool
    OUTCOME = 3  # what a task tool finds
    CLAIM = 4  # fixed luck of a claim
    ROW = 5  # a task row, drawn at reset
    OBEY = 6  # whether a life follows instructions that it meets in claims; of its turn 0
    POLICY = 16  # first purpose of policy noise


def key_words(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two uint32 words of a JAX key, typed or raw; longer keys are folded by exclusive or."""
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    words = data.reshape(-1)
    if words.size == 2:
        return words[0], words[1]
    half = words.reshape(2, -1)
    folded = half[0]
    for i in range(1, half.shape[0]):
        folded = folded ^ half[i]
    return folded[0], folded[-1]


def threefry(k0, k1, c0, c1) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32, 20 rounds (Salmon et al. 2011): hash of counter (c0, c1) under key (k0, k1), elementwise.

    Arguments are uint32 of any shapes that broadcast. Written out, so that it fuses with what uses it and does not
    depend on JAX's random-number settings.
    """
    k0, k1, c0, c1 = (jnp.asarray(x).astype(jnp.uint32) for x in (k0, k1, c0, c1))
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(_PARITY))
    x0, x1 = c0 + k0, c1 + k1
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << jnp.uint32(rotation)) | (x1 >> jnp.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + jnp.uint32(block + 1)
    return x0, x1


def life_key(key: jax.Array, lineage: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two words under which all draws of a life are made: key XOR lineage, uint32[..., 2]."""
    k0, k1 = key_words(key)
    return k0 ^ lineage[..., 0], k1 ^ lineage[..., 1]


def draw(key: jax.Array, lineage: jax.Array, turn: jax.Array, purpose: int) -> jax.Array:
    """Two random words of a life: threefry(key XOR lineage, (turn, purpose)).

    Args:
      key: the episode's luck key (or a policy's key).
      lineage: uint32[..., 2].
      turn: int32[...], the life's own turn number.
      purpose: one of `Purpose`.

    Returns:
      uint32[..., 2].
    """
    k0, k1 = life_key(key, lineage)
    return jnp.stack(threefry(k0, k1, turn, jnp.uint32(purpose)), axis=-1)


def draws(
    keys: tuple[jax.Array, jax.Array], turn: jax.Array, purposes: tuple[int, ...]
) -> list[tuple[jax.Array, jax.Array]]:
    """Two random words per purpose, under the words of `life_key`."""
    return [threefry(*keys, turn, jnp.uint32(purpose)) for purpose in purposes]


def child_lineage(parent: jax.Array, parent_turn: jax.Array, place: jax.Array) -> jax.Array:
    """Lineage uint32[..., 2] of the child born at `place` (0, 1, ...) of the spawn its parent made in `parent_turn`."""
    return jnp.stack(threefry(parent[..., 0], parent[..., 1], parent_turn, place), axis=-1)


def unit(word: jax.Array) -> jax.Array:
    """float32 in [0, 1) from the upper 24 bits of a word: exact, the same on every device."""
    return (word >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)


def field(word: jax.Array, shift: int, bits: int) -> jax.Array:
    """int32 of `bits` bits of a word, from bit `shift`."""
    return ((word.astype(jnp.uint32) >> jnp.uint32(shift)) & jnp.uint32(2**bits - 1)).astype(jnp.int32)


def share(word: jax.Array, shift: int, bits: int) -> jax.Array:
    """float32 in [0, 1) from `bits` bits (at most 24) of a word, from bit `shift`; exact."""
    return field(word, shift, bits).astype(jnp.float32) * jnp.float32(2.0**-bits)


def below(word: jax.Array, shift: int, bits: int, count: Any) -> jax.Array:
    """int32 in 0 .. count - 1, by `bits` bits of a word: field * count >> bits; bits and those of count together <= 32.

    A product costs a tenth of a remainder, and vectorises.
    """
    product = field(word, shift, bits).astype(jnp.uint32) * jnp.asarray(count).astype(jnp.uint32)
    return (product >> jnp.uint32(bits)).astype(jnp.int32)


def noise_keys(policy_key: jax.Array, ts) -> jax.Array:
    """One typed key per slot, by lineage and own turn number: what every stochastic policy draws from.

    Args:
      policy_key: the policy's key.
      ts: a `TimeStep`.

    Returns:
      keys [N].
    """
    words = draw(policy_key, ts.lineage, ts.turn, Purpose.POLICY)
    return jax.random.wrap_key_data(words, impl="threefry2x32")
