"""Slots filled with garbage or dealt out anew, and states compared by who lives rather than where.

Axis letters: B batch, N slot, P parent place.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.pytree import replace
from ddpomdp.testing import slots


def poisoned(key: jax.Array, state: Any) -> Any:
    """The state with garbage in every hidden field of empty slots, free places' boards and emptied mailbox places."""
    state = slots.poisoned(key, state)
    free, unused = state.place_slot < 0, state.mail.count == 0
    odd = jax.random.bits(key) % 2 == 0

    def spoil(tree, where):
        def garbage(x):
            low, high = (jnp.nan, 1e9) if x.dtype == jnp.float32 else (1, 10**9)
            bad = jnp.where(odd, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype))
            return jnp.where(where.reshape(-1, *(1,) * (x.ndim - 1)), bad, x)

        return jax.tree.map(garbage, tree)

    mail = replace(spoil(state.mail, unused), count=state.mail.count)
    return replace(state, mail=mail, board=spoil(state.board, free))


def permuted(state: Any, order: jax.Array) -> Any:
    """The state in which slot j holds what slot order[j] held, int32[N]."""
    new = jnp.argsort(order).astype(jnp.int32)  # where each old slot went
    moved = lambda slot: jnp.where(slot >= 0, new[jnp.maximum(slot, 0)], -1)  # noqa: E731
    deal = lambda tree: jax.tree.map(lambda x: x[order], tree)  # noqa: E731
    return replace(
        state,
        lives=deal(state.lives),
        mail=deal(state.mail),
        legal=deal(state.legal),
        place_slot=moved(state.place_slot),
        roster_slot=moved(state.roster_slot),
    )


def by_life(states: Any, shown: Any, column: int) -> dict[str, np.ndarray]:
    """What states and TimeSteps [B, ...] say, with slots in the order of their lives' uids.

    Slot numbers are replaced by uids. Of empty slots nothing is said but what a TimeStep shows of them, which comes
    last; of a mailbox place that is empty, only that it is. Reading loads stand apart, in names that begin with
    "load"; `column` is that of the load in `Observation.self`.
    """
    states, shown = jax.tree.map(np.asarray, (states, shown))
    lives, n = states.lives, states.lives.uid.shape[1]
    state_order = np.argsort(np.where(lives.uid >= 0, lives.uid, 2**30), axis=1, kind="stable")
    shown_order = np.argsort(np.where(shown.uid >= 0, shown.uid, 2**30), axis=1, kind="stable")
    at = lambda x, order: np.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 2)), axis=1)  # noqa: E731
    masked = lambda x, keep: np.where(keep.reshape(*keep.shape, *(1,) * (x.ndim - 2)), x, np.zeros_like(x))  # noqa: E731

    def named(slot: np.ndarray, uid: np.ndarray) -> np.ndarray:
        return np.where(slot >= 0, np.take_along_axis(uid, np.clip(slot, 0, n - 1).reshape(len(uid), -1), 1), -1)

    flat_roster = states.roster_slot.reshape(len(lives.uid), -1)
    places = {
        "place_slot": named(states.place_slot, lives.uid),
        "roster_slot": named(flat_roster, lives.uid),
        "parent_slot": named(shown.observation.parent_slot, lives.uid),
    }
    has_home, full = lives.alive & (lives.home >= 0), lives.alive & (states.mail.count > 0)
    loads = {
        "load": at(masked(lives.load, lives.alive), state_order),
        "load of mail": at(masked(states.mail.load, full), state_order),
        "load as seen": at(shown.observation.self, shown_order)[:, :, column],
    }
    lives, states = replace(lives, load=None), replace(states, mail=replace(states.mail, load=None))
    kept_lives = jax.tree.map(lambda x: masked(x, lives.alive), replace(lives, rank=np.where(has_home, lives.rank, 0)))
    kept_mail = jax.tree.map(lambda x: masked(x, full), states.mail)
    kept_legal = jax.tree.map(lambda x: masked(x, lives.alive), states.legal)
    board = jax.tree.map(lambda x: masked(x, states.place_slot >= 0), states.board)
    rest = replace(states, lives=None, mail=None, legal=None, board=board, place_slot=None, roster_slot=None)
    seen = shown.observation
    seen = replace(seen, self=np.delete(seen.self, column, axis=-1))
    events = replace(shown.events, slot=None)
    rows = replace(shown, observation=(seen.self, seen.claims, seen.last_result), events=events, info=None)
    rows = replace(rows, last=None, stop_reason=None)
    shared = (shown.info, shown.last, shown.stop_reason, seen.roster, seen.roster_uid, seen.board)
    parts = {
        "lives": jax.tree.map(lambda x: at(x, state_order), (kept_lives, kept_mail, kept_legal)),
        "rest": rest,
        "places": places,
        "rows": jax.tree.map(lambda x: at(x, shown_order), rows),
        "shared": shared,
    }
    leaves = jax.tree_util.tree_leaves_with_path(parts)
    return loads | {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def unequal(one: dict[str, np.ndarray], other: dict[str, np.ndarray], loads_within: float = 0.0) -> dict[str, int]:
    """In how many of B each part differs by a bit, loads by more than `loads_within`, of those that do in any."""
    assert one.keys() == other.keys()
    bits = lambda x: x.view(np.int32) if x.dtype == np.float32 else x  # noqa: E731
    found = {}
    for name, x in one.items():
        near = loads_within and name.startswith("load")
        differ = np.abs(x - other[name]) > loads_within if near else bits(x) != bits(other[name])
        found[name] = int(differ.reshape(len(x), -1).any(axis=1).sum())
    return {name: count for name, count in found.items() if count}
