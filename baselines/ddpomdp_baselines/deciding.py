"""Acting where there is a choice: of all slots of all episodes in a batch, the network sees those that have one.

Most slots of a tick are empty, blocked or idle: their turn is a forced `wait`. Under `vmap` the slots of all episodes
are laid out as one list, those that decide are picked `CHUNK` at a time, and what they say is written back.

Axis letters: B episode, N slot, E entry (slot of an episode), K entry of a chunk, P parent place, A argument position.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.harness import Harness

CHUNK = 128

# (parameters, view, luck f32[E,1+A]) -> (turns int32[E,1+A], logp f32[E,1+A], choice bool[E,1+A])
Speak = Callable[[Any, Any, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def act(harness: Harness, speak: Speak, params: Any, seen: Any, luck: jax.Array) -> tuple[jax.Array, ...]:
    """(turns int32[N,1+A], logp f32[N,1+A], choice bool[N,1+A]) of all slots; forced ones `wait` with logp 0.

    Args:
      harness: the grammar.
      speak: what the network says for a list of entries.
      params: its parameters.
      seen: `View` of the slots of one episode.
      luck: f32[N,1+A] in [0, 1).
    """

    @jax.custom_batching.custom_vmap
    def one(params: Any, seen: Any, luck: jax.Array) -> tuple[jax.Array, ...]:
        return _chunked(harness, speak, params, seen, luck)

    @one.def_vmap
    def many(size: int, in_batched: Any, params: Any, seen: Any, luck: jax.Array) -> tuple[Any, Any]:
        if any(jax.tree.leaves(in_batched[0])):  # several sets of weights: each acts for its own
            axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
            out = jax.vmap(lambda *args: _chunked(harness, speak, *args), in_axes=tuple(axes))(params, seen, luck)
            return out, (True, True, True)
        spread = lambda x, batched: x if batched else jnp.broadcast_to(x, (size, *x.shape))  # noqa: E731
        seen, luck = jax.tree.map(spread, (seen, luck), tuple(in_batched[1:]))
        out = _chunked(harness, speak, params, *flattened(seen, luck))
        return jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out), (True, True, True)

    return one(params, seen, luck)


def flattened(seen: Any, luck: jax.Array) -> tuple[Any, jax.Array]:
    """The slots of B episodes as one list of entries; `at` names entries of that list."""
    size, slots = luck.shape[:2]
    first = jnp.arange(size, dtype=jnp.int32)[:, None] * slots
    at = jnp.where(seen.at < slots, seen.at + first, size * slots)
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    return jax.tree.map(flat, type(seen)(**{**vars(seen), "at": at})), flat(luck)


def _chunked(harness: Harness, speak: Speak, params: Any, seen: Any, luck: jax.Array) -> tuple[jax.Array, ...]:
    """What `act` returns, for a list of entries."""
    entries, positions = luck.shape
    size = min(CHUNK, entries)
    decides = harness.legal_count(seen.legal) > 1
    count = jnp.cumsum(decides, dtype=jnp.int32)
    rank, total = count - 1, count[-1]
    every = jnp.arange(entries, dtype=jnp.int32)

    def chunk(carry: tuple) -> tuple:
        first, said = carry
        here = decides & (rank >= first) & (rank < first + size)
        place = jnp.where(here, rank - first, size)
        who = jnp.full(size, entries, jnp.int32).at[place].set(every, mode="drop")
        rows = jnp.minimum(who, entries - 1)
        own = {name: jax.tree.map(lambda x: x[rows], x) for name, x in vars(seen).items() if name in PER_ENTRY}
        at = jnp.where(seen.at < entries, place[jnp.minimum(seen.at, entries - 1)], size)
        new = speak(params, type(seen)(**{**vars(seen), **own, "at": at}), luck[rows])
        return first + size, jax.tree.map(lambda old, x: old.at[who].set(x, mode="drop"), said, new)

    silent = jnp.zeros((entries, positions))
    start = (silent.astype(jnp.int32), silent, silent > 0)
    return jax.lax.while_loop(lambda carry: carry[0] < total, chunk, (jnp.int32(0), start))[1]


PER_ENTRY = ("self", "claims", "last_result", "legal")  # fields of a view with a leading entry axis
