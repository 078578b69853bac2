"""Logical time: what calls cost, the gate, and waiting.

Ticks are a schedule, clocks are time. A call decided at clock c takes effect at c + latency. The gate lets an agent
decide only when no running child's clock is behind its own, so no decision can miss an earlier arrival.

Axis letters: N slot, P parent place.
"""

import jax
import jax.numpy as jnp

from ddpomdp.enums import WaitFor
from ddpomdp.luck import field, share
from ddpomdp.params import Service
from ddpomdp.pytree import pytree, replace, rows
from ddpomdp.state import Lives, Mail

FAR = 2**31 - 1  # a time that never comes


def latency_ms(service: Service, words: tuple[jax.Array, jax.Array], tokens: jax.Array, tool: jax.Array) -> jax.Array:
    """int32[N] duration of calls that write `tokens` int32[N], with a tool call where `tool` bool[N]; at least 1 ms."""
    w0, w1 = words
    first = service.ttft_ms[field(w0, 0, 10)]
    outside = jnp.where(tool, service.tool_ms[field(w1, 0, 10)], 0)
    writing = (tokens * service.token_us) // 1000
    stalled = share(w0, 10, 22) < service.stall
    stretch = (share(w1, 10, 22) * service.stall_span_ms.astype(jnp.float32)).astype(jnp.int32)
    stall = jnp.where(stalled, service.stall_low_ms + stretch, 0)
    return jnp.maximum(first + outside + writing + stall, 1)


@pytree
class Children:
    """What is out below each parent place, seen by the parent's clock. Axis P."""

    count: jax.Array  # int32[P]  live children
    idle: jax.Array  # int32[P]  returned and read (an adopted one: once it is adopted by the clock)
    unread: jax.Array  # int32[P]  return has arrived and is not read
    out: jax.Array  # int32[P]  at work, as far as the parent can know
    running_ms: jax.Array  # int32[P]  smallest clock of a child that has not returned, FAR if there is none
    next_ms: jax.Array  # int32[P]  earliest return still to arrive, FAR if there is none
    last_ms: jax.Array  # int32[P]  latest return still to arrive, -1 if there is none


def children(lives: Lives, place_slot: jax.Array) -> Children:
    """Count children and find their clocks, for each place."""
    place = jnp.arange(place_slot.shape[0], dtype=jnp.int32)[:, None]
    mine = lives.alive[None, :] & (lives.home[None, :] == place) & (place_slot >= 0)[:, None]
    clock = rows(lives.clock_ms, place_slot)[:, None]
    running = mine & ~lives.returned[None, :]
    back = mine & lives.returned[None, :]
    coming = back & (lives.arrival_ms[None, :] > clock)
    arrived, unread = back & ~coming, lives.unread[None, :]
    total = lambda flags: jnp.sum(flags, axis=-1, dtype=jnp.int32)  # noqa: E731
    return Children(
        count=total(mine),
        idle=total(arrived & ~unread),
        unread=total(arrived & unread),
        out=total(running | coming),
        running_ms=jnp.min(jnp.where(running, lives.clock_ms[None, :], FAR), axis=-1),
        next_ms=jnp.min(jnp.where(coming, lives.arrival_ms[None, :], FAR), axis=-1),
        last_ms=jnp.max(jnp.where(coming, lives.arrival_ms[None, :], -1), axis=-1),
    )


def ask(
    lives: Lives, waits: jax.Array, what: jax.Array, out: jax.Array, service: Service, mail: Mail | None = None
) -> Lives:
    """Apply chosen waits bool[N] for `what` int32[N] (WaitFor), with `out` int32[N] own children at work.

    With nothing to wait for, a wait costs `idle_ms`; else the life is blocked until `release`. Given `mail`, whoever
    has no children at work and mail on its way waits for that, or until the deadline.
    """
    pends = waits & (out > 0)
    idles = jnp.broadcast_to(service.idle_ms, lives.clock_ms.shape)
    if mail is not None:
        coming = jnp.where(mail.count > 0, mail.arrival_ms - lives.clock_ms, 0)
        idles = jnp.where(coming > 0, jnp.minimum(coming, service.wait_limit_ms), idles)
    return replace(
        lives,
        clock_ms=lives.clock_ms + jnp.where(waits & ~pends, idles, 0),
        waiting=jnp.where(pends, 1 + what, lives.waiting),
        wait_left=jnp.where(pends, (out + 1) // 2, lives.wait_left),
        deadline_ms=jnp.where(pends, lives.clock_ms + service.wait_limit_ms, lives.deadline_ms),
        lifted=lives.lifted & ~waits,
    )


def gate(lives: Lives, mail: Mail, place_slot: jax.Array, strict_order: bool) -> Lives:
    """Release waits that are over and block whoever has a running child behind its own clock.

    In strict order only the smallest clock acts, by uid among equals; a wait that ends earlier is released first.
    """
    if not strict_order:
        return _release(lives, mail, place_slot, False)

    def again(carry: tuple[Lives, jax.Array]) -> tuple[Lives, jax.Array]:
        new = _release(carry[0], mail, place_slot, True)
        return new, jnp.any((new.waiting != carry[0].waiting) | (new.wait_left != carry[0].wait_left))

    lives, _ = jax.lax.while_loop(lambda carry: carry[1], again, again((lives, jnp.bool_(True))))
    can = lives.alive & ~lives.returned & ~lives.blocked
    tied = can & (lives.clock_ms == jnp.min(jnp.where(can, lives.clock_ms, FAR)))
    first = jnp.min(jnp.where(tied, lives.uid, FAR))
    return replace(lives, blocked=lives.blocked | (can & (lives.uid != first)))


def _release(lives: Lives, mail: Mail, place_slot: jax.Array, strict_order: bool) -> Lives:
    """One round of releases, and the gate.

    A wait is over when every running child's clock has reached the target: the awaited arrival or the deadline,
    whichever is earlier. `half` moves on by one arrival a tick; blocked ticks are not turns.
    """
    below = children(lives, place_slot)
    at = lambda x: rows(x, place_slot)  # noqa: E731
    held = (place_slot >= 0) & at(lives.alive)
    waiting = jnp.where(held, at(lives.waiting), 0)
    clock = at(lives.clock_ms)
    mail_ms = jnp.where(at(mail.count) > 0, jnp.maximum(at(mail.arrival_ms), clock), FAR)  # still unopened
    is_one = waiting == 1 + WaitFor.ONE
    is_all = waiting == 1 + WaitFor.ALL
    awaited = jnp.where(is_one, jnp.minimum(below.next_ms, mail_ms), below.next_ms)
    everyone = jnp.where((below.running_ms == FAR) & (below.last_ms >= 0), below.last_ms, FAR)
    awaited = jnp.where(is_all, everyone, awaited)
    deadline = at(lives.deadline_ms)
    target = jnp.minimum(awaited, deadline)
    floor = below.running_ms  # nothing can still arrive before it
    if strict_order:
        acting = lives.alive & ~lives.returned & (lives.waiting == 0)
        first = target == jnp.min(jnp.where(waiting > 0, target, FAR))
        floor = jnp.where(first, jnp.min(jnp.where(acting, lives.clock_ms, FAR)), -1)
    moves = (waiting > 0) & (floor >= target)
    late = moves & (deadline < awaited)
    place = jnp.arange(place_slot.shape[0], dtype=jnp.int32)[:, None]
    mine = lives.alive[None, :] & (lives.home[None, :] == place) & lives.returned[None, :]
    arrives = jnp.sum(mine & (lives.arrival_ms[None, :] == target[:, None]), axis=-1, dtype=jnp.int32)
    left = at(lives.wait_left) - jnp.where(moves, arrives, 0)
    over = moves & (is_one | is_all | late | (left <= 0))
    clock = jnp.where(moves, target, clock)
    blocked = (waiting > 0) & ~over
    if not strict_order:
        blocked = blocked | (below.running_ms < clock)

    # Back to the slots of the holders.
    own = lambda x, other: jnp.where(lives.place >= 0, rows(x, lives.place), other)  # noqa: E731
    return replace(
        lives,
        clock_ms=own(clock, lives.clock_ms),
        waiting=jnp.where(own(over, False), 0, lives.waiting),
        wait_left=own(left, lives.wait_left),
        lifted=lives.lifted | own(late, False),
        blocked=lives.alive & own(blocked, False),
    )
