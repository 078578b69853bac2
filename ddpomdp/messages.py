"""Messages: one mailbox place per life, merged at the receiver, in flight until they arrive.

All traffic goes through parents' places (to the parent, to the children, to one child, among siblings), so nothing is
N x N. Axis letters: N slot, P parent place, W words of a claim set.
"""

import jax
import jax.numpy as jnp

from ddpomdp import claims as claims_
from ddpomdp.clocks import FAR
from ddpomdp.enums import Group
from ddpomdp.pytree import pytree, replace, rows
from ddpomdp.state import Lives, Mail, State


@pytree
class Posted:
    """What happened to this tick's messages."""

    sent: jax.Array  # int32[N]  receivers each sender reached for
    undeliverable: jax.Array  # int32[N]  messages per receiver that found no place
    late_ms: jax.Array  # int32[N]  per receiver: how much later than the sender's end they arrive
    delivered_late: jax.Array  # int32[N]  messages per receiver that arrive late


def nothing(state: State) -> Posted:
    """Of a tick in which nobody writes."""
    zero = jnp.zeros_like(state.lives.uid)
    return Posted(sent=zero, undeliverable=zero, late_ms=zero, delivered_late=zero)


def post(
    mail: Mail,
    lives: Lives,
    place_slot: jax.Array,
    leaving: jax.Array,
    group: jax.Array,
    row: jax.Array,
    sent: jax.Array,
    load: jax.Array,
    end_ms: jax.Array,
    steps: jax.Array,
    peers: bool,
) -> tuple[Mail, Posted]:
    """Put messages into their receivers' mailbox places.

    Args:
      group: int32[N] Group addressed, NONE for no message or one to a roster row.
      row: int32[N] roster row addressed, -1 none.
      sent: uint32[N, W] claims sent.
      load: f32[N] reading load of the message.
      end_ms: int32[N] end of the sender's call; for others their clock after this tick.
      steps: int32[N] critical steps of the sender after the call.
      peers: static; whether siblings may talk.

    Upward, a message arrives at the sender's end; downward and sideways at the later of that and the receiver's clock
    after this tick.
    """
    num_places = place_slot.shape[0]
    place = jnp.arange(num_places, dtype=jnp.int32)[:, None]
    home = lives.home
    at = lambda x: rows(x, place_slot)  # noqa: E731
    from_home = lambda x: rows(x, home)  # noqa: E731
    has_home = home >= 0
    child = lives.alive & has_home
    there = lives.alive & ~leaving

    # Up: children of a place who address their parent.
    up = child & (group == Group.PARENT)
    up_here = up[None, :] & (home[None, :] == place)  # [P, N]
    up_count = jnp.sum(up_here, axis=-1, dtype=jnp.int32)
    up_claims = claims_.union(jnp.where(up_here[:, :, None], sent[None], jnp.uint32(0)), axis=1)
    up_arrival = jnp.max(jnp.where(up_here, jnp.maximum(end_ms, lives.since_ms)[None, :], -1), axis=-1)
    up_steps = jnp.max(jnp.where(up_here, steps[None, :], 0), axis=-1)
    up_load = jnp.sum(jnp.where(up_here, load[None, :], 0.0), axis=-1)
    up_sender = jnp.min(jnp.where(up_here, lives.uid[None, :], FAR), axis=-1)

    # Down: the holder addresses its children, or one row of its roster.
    to_all = (place_slot >= 0) & (at(group) == Group.CHILDREN)
    to_row = jnp.where(place_slot >= 0, at(row), -1)
    down = child & (from_home(to_all) | (from_home(to_row) == lives.rank))

    # Sideways.
    beside = child & (group == Group.PEERS)
    side = _sideways(lives, num_places, beside, sent, load, end_ms, steps) if peers else _silence(sent)

    # At the receiver.
    holds = lives.place >= 0
    up_n = jnp.where(holds, rows(up_count, lives.place), 0)
    count = up_n + down.astype(jnp.int32) + side.count
    own = lambda x: rows(x, lives.place)  # noqa: E731
    parent = rows(place_slot, home)
    got_up, got_side = up_n > 0, side.count > 0
    words = jnp.where(got_up[:, None], own(up_claims), jnp.uint32(0))
    words = words | jnp.where(down[:, None], from_home(at(sent)), jnp.uint32(0))
    arrival_up = jnp.where(got_up, own(up_arrival), -1)
    down_end = jnp.where(down, rows(end_ms, parent), -1)
    more_steps = jnp.maximum(jnp.where(got_up, own(up_steps), 0), jnp.where(down, rows(steps, parent), 0))
    more_load = jnp.where(got_up, own(up_load), 0.0) + jnp.where(down, rows(load, parent), 0.0)
    sender = jnp.where(down, rows(lives.uid, parent), jnp.where(got_up, own(up_sender), -1))
    words = words | jnp.where(got_side[:, None], side.claims, jnp.uint32(0))
    across = jnp.maximum(down_end, jnp.where(got_side, side.end_ms, -1))
    more_steps = jnp.maximum(more_steps, jnp.where(got_side, side.steps, 0))
    more_load = more_load + jnp.where(got_side, side.load, 0.0)
    sender = jnp.where((sender < 0) & got_side, side.sender, sender)
    late = (across >= 0) & (end_ms > across)
    arrival = jnp.maximum(arrival_up, jnp.where(across >= 0, jnp.maximum(across, end_ms), -1))
    fits = (count > 0) & there & (mail.count == 0)
    mail = Mail(
        claims=jnp.where(fits[:, None], words, mail.claims),
        count=jnp.where(fits, count, mail.count),
        arrival_ms=jnp.where(fits, arrival, mail.arrival_ms),
        steps=jnp.where(fits, more_steps, mail.steps),
        sender=jnp.where(fits, sender, mail.sender),
        load=jnp.where(fits, more_load, mail.load),
    )

    # At the sender: how many it reached for.
    num_children = jnp.sum(child[None, :] & (home[None, :] == place), axis=-1, dtype=jnp.int32)
    reached = jnp.where(up, 1, 0)
    reached = reached + jnp.where(holds & (group == Group.CHILDREN), own(num_children), 0) + jnp.where(row >= 0, 1, 0)
    reached = reached + jnp.where(beside, from_home(num_children) - 1, 0)
    return mail, Posted(
        sent=reached,
        undeliverable=jnp.where(lives.alive & ~fits, count, 0),
        late_ms=jnp.where(fits & late, end_ms - across, 0),
        delivered_late=jnp.where(fits & late, down.astype(jnp.int32) + side.count, 0),
    )


@pytree
class Side:
    """What siblings send to each life in a tick, merged. Axis N slot."""

    count: jax.Array  # int32[N]
    claims: jax.Array  # uint32[N,W]
    end_ms: jax.Array  # int32[N]    latest end of their calls
    steps: jax.Array  # int32[N]
    load: jax.Array  # f32[N]
    sender: jax.Array  # int32[N]    first uid


def _silence(sent: jax.Array) -> Side:
    """Where siblings may not talk."""
    zero = jnp.zeros(sent.shape[0], jnp.int32)
    return Side(zero, jnp.zeros_like(sent), zero, zero, zero.astype(jnp.float32), zero)


def _sideways(
    lives: Lives,
    num_places: int,
    beside: jax.Array,
    sent: jax.Array,
    load: jax.Array,
    end_ms: jax.Array,
    steps: jax.Array,
) -> Side:
    """Merge what the lives in bool[N] `beside` tell their siblings; of the others two extremes suffice per parent."""
    home = lives.home
    here = beside[None, :] & (home[None, :] == jnp.arange(num_places, dtype=jnp.int32)[:, None])  # [P, N]
    ends = jnp.where(here, end_ms[None, :], -1)
    uids = jnp.where(here, lives.uid[None, :], FAR)
    last_end, first_uid = jnp.max(ends, axis=-1), jnp.min(uids, axis=-1)
    is_last = here & (ends == last_end[:, None])
    second_end = jnp.where(jnp.sum(is_last, axis=-1) > 1, last_end, jnp.max(jnp.where(is_last, -1, ends), axis=-1))
    second_uid = jnp.min(jnp.where(uids == first_uid[:, None], FAR, uids), axis=-1)
    total_load = jnp.sum(jnp.where(here, load[None, :], 0.0), axis=-1)
    total = jnp.sum(here, axis=-1, dtype=jnp.int32)
    # What a life tells comes back to nobody: a summary may hold a garbled claim that its sender does not know.
    told, often = claims_.union_and_shared(jnp.where(here[:, :, None], sent[None], jnp.uint32(0)), axis=1)
    at = lambda x: rows(x, home)  # noqa: E731
    is_child = lives.alive & (home >= 0)
    return Side(
        count=jnp.where(is_child, at(total) - beside.astype(jnp.int32), 0),
        claims=jnp.where(beside[:, None], (at(told) & ~sent) | at(often), at(told)),
        end_ms=jnp.where(beside & (end_ms == at(last_end)), at(second_end), at(last_end)),
        steps=at(jnp.max(jnp.where(here, steps[None, :], 0), axis=-1)),
        load=at(total_load) - jnp.where(beside, load, 0.0),
        sender=jnp.where(lives.uid == at(first_uid), at(second_uid), at(first_uid)),
    )


def arrived(mail: Mail, lives: Lives) -> jax.Array:
    """bool[N]: mail that has arrived by the receiver's clock; idle lives leave theirs unopened."""
    return lives.alive & ~lives.returned & (mail.count > 0) & (mail.arrival_ms <= lives.clock_ms)


def emptied(mail: Mail, gone: jax.Array) -> Mail:
    """Mailbox places of bool[N] made free."""
    return replace(mail, count=jnp.where(gone, 0, mail.count))
