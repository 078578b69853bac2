"""Slots are places, nothing more: empty ones influence nothing, and their order does not either."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.harness import WAIT
from ddpomdp.pytree import replace
from ddpomdp.state import State
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want
from ddpomdp.testing.trees import differing, numpy

PLACES, TICKS = 12, 4


@check("slots.zero")
def zero(trial: Trial) -> int:
    """Observations of slots that show no life, empty roster rows and free parent places are zero."""
    empty = 0
    for episode in trial.episodes:
        for ts in (episode.seen, episode.after):
            seen, none = ts.observation, ts.uid == -1
            for name in ("self", "claims", "last_result"):
                value = getattr(seen, name)
                is_zero = (value == 0).reshape(*none.shape, -1).all(axis=-1)
                episode.must(~none | is_zero, f"observation.{name} of an empty slot is zero", got=value)
            unused = seen.roster_uid == -1
            episode.must(~unused | (seen.roster == 0).all(axis=-1), "an empty roster row is zero", got=seen.roster)
            free = seen.parent_slot == -1
            is_zero = (seen.board == 0).reshape(*free.shape, -1).all(axis=-1) & unused.all(axis=-1)
            episode.must(~free | is_zero, "a free parent place has an empty roster and board", uids=seen.roster_uid)
            empty += int(none.sum())
    return empty


def poisoned(key: jax.Array, state: State) -> State:
    """The state with every hidden field of empty slots set to garbage: NaN, infinities, huge, small or any bits."""
    empty = ~state.lives.alive

    noise = jax.random.bits(key, empty.shape, jnp.uint32)

    def garbage(x, i):
        size = x.size // empty.size
        word = (noise[:, None] + jnp.uint32(i)) * jnp.uint32(2_654_435_761) + jnp.arange(size, dtype=jnp.uint32)[None]
        word = (word ^ (word >> jnp.uint32(15))) * jnp.uint32(2_246_822_519)
        word = word.reshape(x.shape)
        kind = (word >> jnp.uint32(29)) % jnp.uint32(3)
        if x.dtype == bool:
            bad = kind == 0
        elif jnp.issubdtype(x.dtype, jnp.floating):
            bad = jnp.array([jnp.nan, -1e9, jnp.inf], x.dtype)[kind]
        else:
            small = (word >> jnp.uint32(8)) % jnp.uint32(12)
            bad = jnp.where(kind == 0, word, jnp.where(kind == 1, small, jnp.uint32(10**9))).astype(x.dtype)
        return jnp.where(empty.reshape(-1, *(1,) * (x.ndim - 1)), bad, x)

    def spoil(tree, base):
        leaves, form = jax.tree.flatten(tree)
        return jax.tree.unflatten(form, [garbage(x, base + i) for i, x in enumerate(leaves)])

    lives = replace(spoil(state.lives, 0), alive=state.lives.alive, uid=state.lives.uid)
    return replace(state, lives=lives, mail=spoil(state.mail, 100), legal=spoil(state.legal, 200))


_poisoned = jax.jit(poisoned)


@check("slots.poison")
def poison(trial: Trial) -> int:
    """Garbage in the hidden fields of empty slots (NaN, 1e9, any bits) changes no output."""
    tried = 0
    for episode, tick in trial.places(PLACES):
        state = episode.states[tick]
        if not isinstance(state, State):
            return 0
        tried += int((~episode.seen.alive[tick]).sum())
        state = _poisoned(jax.random.fold_in(episode.luck, tick), state)
        for t in range(tick, min(tick + TICKS, len(episode.turns))):
            state, ts = trial.step(episode.luck, state, episode.turns[t])
            odd = differing(ts, jax.tree.map(lambda x: x[t], episode.after))  # noqa: B023
            want(
                not odd,
                f"garbage put there in tick {tick} changed {', '.join(odd[:5])} in tick {t}, episode {episode.index}",
            )
    return tried


def permuted(state: State, order: np.ndarray) -> State:
    """The state with slot i's life moved from slot order[i]; every slot number in it follows."""
    to = jnp.asarray(np.append(np.argsort(order), -1), jnp.int32)  # new slot of each old one; -1 stays
    move = lambda tree: jax.tree.map(lambda x: x[order], tree)  # noqa: E731
    return replace(
        state,
        lives=move(state.lives),
        mail=move(state.mail),
        legal=move(state.legal),
        place_slot=to[state.place_slot],
        roster_slot=to[state.roster_slot],
    )


def by_uid(ts: Any) -> dict[str, Any]:
    """A TimeStep as numpy with its rows in the order of uids, empty ones left out, and slots named by uid."""
    ts = numpy(ts)
    rows = np.argsort(ts.uid)[np.sum(ts.uid < 0) :]
    take = lambda tree: jax.tree.map(lambda x: x[rows], tree)  # noqa: E731
    shared = ("last", "stop_reason", "info", "observation", "events")
    names = [name for name in type(ts).__dataclass_fields__ if name not in shared]
    seen, holder = ts.observation, ts.observation.parent_slot
    return {
        **{name: take(getattr(ts, name)) for name in names},
        "events": take(replace(ts.events, slot=np.zeros_like(ts.events.slot))),
        "seen": take((seen.self, seen.claims, seen.last_result)),
        "parents": (np.where(holder >= 0, ts.uid[holder], -1), seen.roster, seen.roster_uid, seen.board),
        "shared": (ts.last, ts.stop_reason, ts.info),
    }


@check("slots.order")
def order(trial: Trial) -> int:
    """Lives in other slots: the same outputs, life by life."""
    rng, moved = np.random.default_rng(trial.seed), 0
    n = trial.spec.capacity
    for episode, tick in trial.places(PLACES):
        state = episode.states[tick]
        if not isinstance(state, State) or n == 1:
            return 0
        shuffle = rng.permutation(n)
        state = permuted(state, shuffle)
        moved += int((episode.seen.alive[tick][shuffle] & (shuffle != np.arange(n))).sum())
        where = {int(uid): slot for slot, uid in enumerate(np.asarray(state.lives.uid)) if uid >= 0}
        for t in range(tick, min(tick + TICKS, len(episode.turns))):
            turns = np.full_like(episode.turns[t], WAIT)
            for slot in np.flatnonzero(episode.seen.alive[t]):
                turns[where[int(episode.seen.uid[t, slot])]] = episode.turns[t, slot]
            state, ts = trial.step(episode.luck, state, turns)
            odd = differing(by_uid(ts), by_uid(jax.tree.map(lambda x: x[t], episode.after)))  # noqa: B023
            said = f"lives shuffled to slots {shuffle.tolist()} in tick {tick}"
            want(not odd, f"{said} changed {', '.join(odd[:5])} in tick {t}, episode {episode.index}")
            where = {int(uid): slot for slot, uid in enumerate(np.asarray(ts.uid)) if uid >= 0}
    return moved
