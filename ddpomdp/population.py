"""The population: births, despawns, adoption, parent places and rosters.

Shared limits serve requests in the order of parent's uid, then uid. A slot freed in a tick can be filled from the next
one on; nobody is ownerless. Axis letters: N slot, P parent place, R roster row.
"""

import jax
import jax.numpy as jnp

from ddpomdp import claims, messages
from ddpomdp import luck as luck_
from ddpomdp.clocks import FAR
from ddpomdp.handout import Grants
from ddpomdp.harness import DESPAWN, SPAWN
from ddpomdp.pytree import in_rank, once, replace, rows
from ddpomdp.rules import Rules, per_parent
from ddpomdp.state import Lives, State
from ddpomdp.turns import Call


def order_key(rules: Rules, state: State) -> jax.Array:
    """int32[N]: shared limits serve requests by this key: parent's uid, then uid."""
    lives = state.lives
    parent = jnp.where(lives.home >= 0, rows(lives.uid, rows(state.place_slot, lives.home)), -1)
    return (parent + 1) * jnp.int32(sum(rules.config.max_lives) + 1) + lives.uid


def crew(rules: Rules, state: State) -> State:
    """The root's crew, one child of each other role: born before the first turn, idle until it is handed work."""
    lives = state.lives
    slots = jnp.arange(lives.uid.shape[0], dtype=jnp.int32)
    number = len(rules.task.roles) - 1
    mine = (slots > 0) & (slots <= number)
    fill = lambda new, old: jnp.where(in_rank(mine, old), new, old)  # noqa: E731
    lineage = luck_.child_lineage(jnp.asarray(luck_.ROOT_LINEAGE, jnp.uint32), jnp.zeros_like(slots), slots - 1)
    lives = replace(
        lives,
        alive=lives.alive | mine,
        seen=lives.seen | mine,
        uid=fill(slots, lives.uid),
        role=fill(slots, lives.role),
        depth=fill(1, lives.depth),
        lineage=fill(lineage, lives.lineage),
        home=fill(0, lives.home),
        returned=lives.returned | mine,
    )
    rank, roster = rosters(rules, lives, state.place_slot)
    return replace(
        state,
        lives=replace(lives, rank=jnp.where(lives.alive, rank, lives.rank)),
        roster_slot=roster,
        next_uid=state.next_uid + number,
        born=state.born.at[1:].add(1),
        totals=replace(state.totals, births=state.totals.births + number),
    )


def overview(rules: Rules, state: State, call: Call) -> tuple[jax.Array, jax.Array]:
    """The order in which shared limits serve int32[N], and who leaves in this tick bool[N]."""
    return order_key(rules, state), leaving(rules, state, call)


def leaving(rules: Rules, state: State, call: Call) -> jax.Array:
    """bool[N]: children whose parent despawns them in this tick."""
    lives = state.lives
    who = rules.arg(call, DESPAWN, "who")
    despawns = rows(call.tool, state.place_slot) == DESPAWN
    despawns = despawns & (state.place_slot >= 0)
    target = jnp.where(despawns, rows(who, state.place_slot), -1)
    return lives.alive & (lives.home >= 0) & (rows(target, lives.home) == lives.rank)


def seat(rules: Rules, state: State, call: Call, leaving: jax.Array, order: jax.Array) -> State:
    """Give spawners without a parent place one of the free places, in order."""
    spawner = (call.tool == SPAWN) & ~leaving
    num_places = state.place_slot.shape[0]
    if num_places == 1:
        return state
    lives, place_slot, place = state.lives, state.place_slot, state.lives.place
    waiting = jnp.where(spawner & (place < 0), order, FAR)
    for _ in range(num_places - 1):  # the root always has a place
        slot = jnp.argmin(waiting).astype(jnp.int32)
        free = jnp.argmin(place_slot >= 0).astype(jnp.int32)
        fits = (waiting[slot] < FAR) & (place_slot[free] < 0)
        place_slot = place_slot.at[free].set(jnp.where(fits, slot, place_slot[free]))
        place = place.at[slot].set(jnp.where(fits, free, place[slot]))
        waiting = waiting.at[slot].set(FAR)
    return replace(state, place_slot=place_slot, lives=replace(lives, place=place))


def bear(rules: Rules, before: State, state: State, grants: Grants) -> tuple[State, jax.Array]:
    """Births, in slots that were free at the start of the tick; none in an ending tick. Returns bool[N]."""
    lives = state.lives
    born = jnp.where(state.ended, 0, grants.born)
    newborn, home, ordinal = once(_cradles, ~before.lives.alive, grants.first_free, born)
    at = lambda x: rows(rows(x, grants.holder), home)  # noqa: E731
    lineage = once(luck_.child_lineage, at(lives.lineage), at(before.lives.turn), ordinal)
    start = at(lives.clock_ms)
    fill = lambda new, old: jnp.where(in_rank(newborn, old), new, old)  # noqa: E731
    role = fill(rows(grants.role, home), lives.role)
    fresh_task = jax.tree.map(fill, rules.task.life(newborn.shape[0]), lives.task)
    lives = Lives(
        alive=lives.alive | newborn,
        seen=lives.seen | newborn,
        uid=fill(rows(grants.first_uid, home) + ordinal, lives.uid),
        role=role,
        depth=fill(at(lives.depth) + 1, lives.depth),
        lineage=fill(lineage, lives.lineage),
        home=fill(home, lives.home),
        place=fill(-1, lives.place),
        turn=fill(0, lives.turn),
        clock_ms=fill(start, lives.clock_ms),
        steps=fill(at(lives.steps), lives.steps),
        since_ms=fill(start, lives.since_ms),
        blocked=fill(False, lives.blocked),
        waiting=fill(0, lives.waiting),
        wait_left=fill(0, lives.wait_left),
        deadline_ms=fill(0, lives.deadline_ms),
        lifted=fill(False, lives.lifted),
        returned=fill(False, lives.returned),
        unread=fill(False, lives.unread),
        arrival_ms=fill(0, lives.arrival_ms),
        offer=fill(0, lives.offer),
        offered=fill(0, lives.offered),
        ever_returned=fill(False, lives.ever_returned),
        start=fill(0, lives.start),
        end=fill(0, lives.end),
        cursor=fill(0, lives.cursor),
        brief=fill(0, lives.brief),
        handed_ms=fill(start, lives.handed_ms),
        handed_rows=fill(0, lives.handed_rows),
        planned=fill(False, lives.planned),
        again=fill(0, lives.again),
        rank=fill(ordinal, lives.rank),  # until rosters are brought up to date
        known=fill(jnp.uint32(0), lives.known),
        fresh=fill(jnp.uint32(0), lives.fresh),
        newest=fill(-1, lives.newest),
        load=fill(0.0, lives.load),
        spent=fill(0, lives.spent),
        unreported=fill(0, lives.unreported),
        last_tool=fill(-1, lives.last_tool),
        last_code=fill(0, lives.last_code),
        last_value=fill(-1, lives.last_value),
        task=fresh_task,
    )
    mail = messages.emptied(state.mail, newborn)
    roles = jnp.arange(state.born.shape[0], dtype=jnp.int32)
    by_role = jnp.sum(jnp.where(grants.role[:, None] == roles, born[:, None], 0), axis=0, dtype=jnp.int32)
    state = replace(
        state,
        lives=lives,
        mail=mail,
        next_uid=state.next_uid + jnp.sum(born, dtype=jnp.int32),
        born=state.born + by_role,
    )
    return state, newborn


def _cradles(free: jax.Array, first: jax.Array, born: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(who is born bool[N], parent place int32[N], place in the spawn int32[N]) of the free slots bool[N]."""
    rank = once(claims.prefix_count, free)
    place = jnp.arange(born.shape[0], dtype=jnp.int32)[:, None]
    here = free[None, :] & (rank[None, :] >= first[:, None]) & (rank[None, :] < (first + born)[:, None])  # [P, N]
    home = jnp.sum(jnp.where(here, place, 0), axis=0, dtype=jnp.int32)
    return jnp.any(here, axis=0), home, rank - rows(first, home)


def remove(rules: Rules, before: State, state: State, leaving: jax.Array) -> tuple[State, jax.Array]:
    """Despawned lives go; their children are adopted by the nearest live ancestor; empty parent places are freed.

    Returns int32[N]: messages lost with their receivers.
    """
    lives, place_slot = state.lives, state.place_slot
    leaving_place = (place_slot >= 0) & rows(leaving, place_slot)
    if rules.topology.max_parents > 1:
        heir = jnp.arange(place_slot.shape[0], dtype=jnp.int32)
        up = jnp.where(leaving_place, rows(lives.home, place_slot), heir)
        for _ in range(rules.topology.max_depth):
            heir = rows(up, heir)
        orphan = lives.alive & (lives.home >= 0) & rows(leaving_place, lives.home)
        parent = rows(place_slot, lives.home)
        # The parent's leave takes effect at the later of its parent's end and its own clock.
        grand = rows(place_slot, rows(lives.home, parent))
        left_ms = jnp.maximum(rows(lives.clock_ms, grand), rows(lives.clock_ms, parent))
        since = jnp.maximum(lives.since_ms, left_ms)
        lives = replace(
            lives,
            home=jnp.where(orphan, rows(heir, lives.home), lives.home),
            since_ms=jnp.where(orphan, since, lives.since_ms),
            arrival_ms=jnp.where(orphan, jnp.maximum(lives.arrival_ms, since), lives.arrival_ms),
        )
    alive = lives.alive & ~leaving
    place = jnp.arange(place_slot.shape[0], dtype=jnp.int32)
    has_child = jnp.any(alive[None, :] & (lives.home[None, :] == place[:, None]), axis=-1)
    keeps = (place == 0) | (has_child & ~leaving_place) | before.ended
    place_slot = jnp.where(keeps, place_slot, -1)
    own_place = jnp.where((lives.place >= 0) & rows(keeps, lives.place) & ~leaving, lives.place, -1)
    lost = jnp.where(leaving, state.mail.count, 0)
    lives = replace(
        lives,
        alive=alive,
        place=own_place,
    )
    mail = messages.emptied(state.mail, leaving)
    return replace(state, lives=lives, mail=mail, place_slot=place_slot), lost


def roster_order(rules: Rules, lives: Lives, place_slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(slots int32[N] sorted by parent place, roster class, uid; start int32[P] of each place's children)."""
    clock = rows(lives.clock_ms, rows(place_slot, lives.home))
    arrived = lives.returned & (lives.arrival_ms <= clock)
    group = jnp.where(arrived, jnp.where(lives.unread, 1, 0), 3)
    num_places, num_uids = place_slot.shape[0], sum(rules.config.max_lives) + 1
    child = lives.alive & (lives.home >= 0)
    key = (jnp.where(child, lives.home, num_places) * 4 + group) * num_uids + jnp.where(child, lives.uid, 0)
    n = key.shape[0]
    slots = jnp.arange(n, dtype=jnp.int32)
    if (num_places + 1) * 4 * num_uids * n < 2**31:
        packed = jnp.sort(key * n + slots)
        slots = packed % n
    else:
        slots = jax.lax.sort((key, slots), num_keys=1)[1]
    place = jnp.arange(num_places, dtype=jnp.int32)
    start = jnp.sum(child[None, :] & (lives.home[None, :] < place[:, None]), axis=-1, dtype=jnp.int32)
    return slots, start


def rosters(rules: Rules, lives: Lives, place_slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(each child's row in its parent's roster int32[N], slots of each roster's rows int32[P, R], -1 empty)."""
    slots, start = roster_order(rules, lives, place_slot)
    n = slots.shape[0]
    position = jnp.zeros_like(slots).at[slots].set(jnp.arange(n, dtype=jnp.int32))
    count = per_parent(lives.alive, lives.home, place_slot)
    row = jnp.arange(rules.config.roster, dtype=jnp.int32)
    listed = slots[jnp.minimum(start[:, None] + row, n - 1)]
    listed = jnp.where((row < count[:, None]) & (place_slot >= 0)[:, None], listed, -1)
    return position - rows(start, lives.home), listed
