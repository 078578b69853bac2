"""The trace as a critic reads it: a row per event, or finished branches folded into a row each.

An event is a turn of a live agent that is not a forced wait: what a trace file holds, too. Folded, the list is the
lead's context instead: a row per event of the lead, and one per return of a child of the lead, the mean of the rows of
all that the child and those below it did since its last return. What a branch does before it returns, or never returns
from, is not in the lead's context.

Axis letters: T tick, B episode, N slot, A argument position, U life, L row, F feature, E = T N entry of an episode.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.enums import EventKind, ResultCode
from ddpomdp.env import Env
from ddpomdp.pytree import pytree
from ddpomdp.timestep import Event

NEVER = 2**30  # tick of a row that does not exist
DEEPEST = 3  # depth of a life, the root's being 0
NUMBERS = ("tokens", "claims_received", "claims_sent", "refused")  # log(1 + x) of each


@pytree
class Log:
    """What rows are made of, of every tick."""

    uid: jax.Array  # int32[T,B,N]
    parent_uid: jax.Array  # int32[T,B,N]
    kind: jax.Array  # int32[T,B,N]
    role: jax.Array  # int32[T,B,N]
    chosen: jax.Array  # bool[T,B,N]      an event: no forced wait, no empty slot
    tokens: jax.Array  # int32[T,B,N,1+A]
    code: jax.Array  # int32[T,B,N]
    numbers: jax.Array  # f32[T,B,N,.]    `NUMBERS`


@pytree
class Prefix:
    """Rows in the order of ticks; a moment before tick t has seen those of ticks below t."""

    rows: jax.Array  # f32[B,L,F]  zero where there is none
    tick: jax.Array  # int32[B,L]  in which the row came to be, `NEVER` where there is none
    dropped: jax.Array  # f32[B]    share of an episode's rows for which there was no room

    def before(self, num_ticks: int) -> jax.Array:
        """int32[T,B]: how many rows are seen before each tick."""
        ticks = jnp.arange(num_ticks, dtype=jnp.int32)
        return jax.vmap(lambda row: jnp.searchsorted(row, ticks, side="left"), out_axes=1)(self.tick).astype(jnp.int32)


def logged(event: Event) -> Log:
    """The log of a tick."""
    numbers = (jnp.sum(event.cost_tokens, axis=-1), event.claims_received, event.claims_sent, event.refused)
    return Log(
        uid=event.uid,
        parent_uid=event.parent_uid,
        kind=event.kind,
        role=event.role,
        chosen=(event.uid >= 0) & ((event.kind != EventKind.WAIT) | event.is_decision),
        tokens=event.tokens,
        code=event.result_code,
        numbers=jnp.log1p(jnp.stack(numbers, axis=-1).astype(jnp.float32)),
    )


def features(env: Env) -> list[str]:
    """Names of the features of a row, [F]; names with a value in them are shares (of one event: 0 or 1)."""
    tokens = [f"token_{i}_{v}" for i in range(1 + env.spec.num_args) for v in range(env.spec.vocabulary)]
    kinds = [f"kind_{kind.name.lower()}" for kind in EventKind]
    roles = [f"role_{role}" for role in env.spec.roles]
    return [*kinds, *roles, *tokens, *(f"code_{code.name.lower()}" for code in ResultCode), *NUMBERS, "root", "events"]


def prefix_of(env: Env, log: Log, num_uids: int, *, fold: bool, rows: int) -> Prefix:
    """The rows of a batch of episodes.

    Args:
      env: names roles, tokens and vocabulary.
      log: of all ticks.
      num_uids: static U.
      fold: whether finished branches are folded.
      rows: static L; of an episode that has more, the first are kept.
    """

    def one(log: Log) -> Prefix:
        target, own = _folded(log, num_uids) if fold else _unfolded(log)
        own = jnp.where(own < rows, own, rows)  # rows: no room
        kept = own >= 0
        place = jnp.where(kept, own, rows).reshape(-1)
        target = jnp.where((target >= 0) & (target < rows), target, rows).reshape(-1)
        tick = jnp.broadcast_to(jnp.arange(own.shape[0], dtype=jnp.int32)[:, None], own.shape).reshape(-1)
        return Prefix(
            rows=_means(env, log, target, rows, fold),
            tick=jnp.full(rows, NEVER, jnp.int32).at[place].set(tick, mode="drop"),
            dropped=jnp.sum(own == rows) / jnp.maximum(jnp.sum(kept), 1),
        )

    return jax.vmap(one, in_axes=1)(log)


def _unfolded(log: Log) -> tuple[jax.Array, jax.Array]:
    """(the row that each event is part of int32[T,N], the row that came to be with it), -1 none."""
    own = _numbered(log.chosen)
    return own, own


def _folded(log: Log, num_uids: int) -> tuple[jax.Array, jax.Array]:
    """The same with branches folded: an event of a branch is part of the row of the branch's next return."""
    uid = jnp.where(log.chosen, log.uid, num_uids)
    # Who adopts a life has a smaller uid than who bore it.
    parent = jnp.zeros(num_uids, jnp.int32).at[uid].max(log.parent_uid, mode="drop")
    top = jnp.arange(num_uids, dtype=jnp.int32)
    for _ in range(DEEPEST - 1):
        top = jnp.where(parent[top] > 0, parent[top], top)
    branch = jnp.where(log.chosen, top.at[uid].get(mode="fill", fill_value=0), num_uids)
    lead = log.chosen & (log.uid == 0)
    back = log.chosen & (log.uid > 0) & (log.kind == EventKind.RETURN) & (log.parent_uid == 0)
    own = _numbered(lead | back)

    def tick(row: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        own, branch, back = now
        row = row.at[jnp.where(back, branch, num_uids)].set(own, mode="drop")
        return row, row.at[branch].get(mode="fill", fill_value=-1)

    row = jax.lax.scan(tick, jnp.full(num_uids, -1, jnp.int32), (own, branch, back), reverse=True)[1]
    return jnp.where(lead, own, jnp.where(log.chosen, row, -1)), own


def _numbered(flags: jax.Array) -> jax.Array:
    """int32[T,N]: 0, 1, 2, ... where set, in the order of ticks and slots; -1 elsewhere."""
    return jnp.where(flags, jnp.cumsum(flags.reshape(-1), dtype=jnp.int32).reshape(flags.shape) - 1, -1)


def _means(env: Env, log: Log, target: jax.Array, rows: int, fold: bool) -> jax.Array:
    """f32[L,F]: the mean of the features of the events whose target int32[E] a row is."""
    spec = env.spec
    flat: Any = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), log)
    starts, parts = 0, []
    for values, size in (
        (flat.kind, len(EventKind)),
        (flat.role, len(spec.roles)),
        *((flat.tokens[:, i], spec.vocabulary) for i in range(1 + spec.num_args)),
        (flat.code, len(ResultCode)),
    ):
        parts.append(starts + jnp.clip(values, 0, size - 1))
        starts += size
    count = jnp.zeros(rows).at[target].add(1.0, mode="drop")
    share = 1 / jnp.maximum(count, 1).at[target].get(mode="fill", fill_value=1.0)
    numbers = jnp.concatenate([flat.numbers, (flat.uid == 0)[:, None]], axis=-1)
    out = jnp.zeros((rows, len(features(env))))
    out = out.at[target[:, None], jnp.stack(parts, axis=-1)].add(share[:, None], mode="drop")
    out = out.at[target[:, None], starts + jnp.arange(numbers.shape[1])].add(share[:, None] * numbers, mode="drop")
    out = out.at[:, -1].set(jnp.log1p(count))
    if not fold:
        return out
    branch = (count > 0) & (out[:, -2] == 0)  # no event of it is the root's
    return out.at[:, EventKind.FOLD].set(branch.astype(jnp.float32))
