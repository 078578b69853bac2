"""What agents see: features of themselves, their newest claims, their last result; rosters and boards of parents.

Only what has arrived by the agent's own clock is shown: a child that has returned but not arrived looks exactly like
one at work. No tick, no truth, no luck, no taint. Axis letters: N slot, C claim, P parent place, R roster row, M row.
"""

import jax
import jax.numpy as jnp

from ddpomdp import claims as claims_
from ddpomdp import clocks as clocks_
from ddpomdp.engine import Engine
from ddpomdp.enums import ResultCode
from ddpomdp.params import Params
from ddpomdp.pytree import rows
from ddpomdp.state import State
from ddpomdp.timestep import Observation

CLAIM_FEATURES = ("row", "confidence", "own", "from_checker")
ROSTER_FEATURES = ("idle", "unread", "running", "brief", "rows_handed", "handed_ago_min", "claims_offered")
BOARD_FEATURES = ("handed", "values", "top_origins", "second_origins", "top_confidence", "accepts", "rejects")
RESULT_FEATURES = tuple(code.name.lower() for code in ResultCode)


def self_features(engine: Engine) -> tuple[str, ...]:
    """Names of the features in `Observation.self`."""
    roles = tuple(f"is_{name}" for name in engine.task.roles)
    return (
        *roles,
        "depth",
        "clock_min",
        "turn",
        "spent_kilotokens",
        "brief",
        "rows_left",
        "rows_done",
        "claims_known",
        "load",
        "children_idle",
        "children_unread",
        "children_out",
        "lifted",
        "has_handed_out",
        "idle",
        "blocked",
        *engine.task.self_features,
    )


def result_features(engine: Engine) -> tuple[str, ...]:
    """Names of the features in `Observation.last_result`."""
    tools = tuple(f"tool_{tool.name}" for tool in engine.harness.tools)
    values = tuple(f"value_{v}" for v in range(engine.task.num_values))
    return (*tools, *RESULT_FEATURES, *values)


def claim_features(engine: Engine) -> tuple[str, ...]:
    """Names of the features in `Observation.claims`."""
    return (*CLAIM_FEATURES, *(f"value_{v}" for v in range(engine.task.num_values)))


def board_features(engine: Engine) -> tuple[str, ...]:
    """Names of the features in `Observation.board`."""
    return (*BOARD_FEATURES, *(f"top_value_{v}" for v in range(engine.task.num_values)))


def observe(engine: Engine, state: State, params: Params) -> Observation:
    """Observations of all slots."""
    lives, task, log = state.lives, engine.task, state.log
    num_rows, num_values = task.num_rows, task.num_values
    below = clocks_.children(lives, state.place_slot)
    own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
    here = lives.alive & ~state.ended
    f = lambda x: x.astype(jnp.float32)  # noqa: E731
    columns = [
        *(f(lives.role == i) for i in range(len(task.roles))),
        f(lives.depth),
        f(lives.clock_ms) / 60_000,
        f(lives.turn) / 100,
        f(lives.spent) / 1000,
        f(lives.brief),
        f(jnp.maximum(lives.end - lives.cursor, 0)) / num_rows,
        f(jnp.clip(lives.cursor - lives.start, 0, None)) / num_rows,
        f(claims_.size(lives.known)) / num_rows,
        lives.load / params.reading.capacity,
        f(own(below.idle)) / 10,
        f(own(below.unread)) / 10,
        f(own(below.out)) / 10,
        f(lives.lifted),
        f(lives.planned),
        f(lives.returned),
        f(lives.blocked),
        *task.observe(lives.task, params.task),
    ]
    own_view = jnp.where(here[:, None], jnp.stack(columns, axis=-1), 0.0)

    one_hot = lambda index, size: f(index[..., None] == jnp.arange(size, dtype=jnp.int32))  # noqa: E731
    result = jnp.concatenate(
        [
            one_hot(lives.last_tool, len(engine.harness.tools)),
            one_hot(jnp.where(lives.turn > 0, lives.last_code, -1), len(RESULT_FEATURES)),
            one_hot(lives.last_value, num_values),
        ],
        axis=-1,
    )
    result = jnp.where(here[:, None], result, 0.0)

    place = lives.newest
    entry = log.entries[jnp.maximum(place, 0)]  # [N, C, 6]
    claims = jnp.concatenate(
        [
            f(jnp.maximum(place, 0) // log.per_row)[..., None] / num_rows,
            f(entry[..., claims_.CONFIDENCE])[..., None] * 2.0**-16,
            f(entry[..., claims_.ORIGIN] == lives.uid[:, None])[..., None],
            jnp.zeros((*place.shape, 1), jnp.float32),
            one_hot(entry[..., claims_.VALUE], num_values),
        ],
        axis=-1,
    )
    claims = jnp.where((here[:, None] & (place >= 0))[..., None], claims, 0.0)
    roster, roster_uid, board = _parents(engine, state, params)
    return Observation(
        self=own_view,
        claims=claims,
        last_result=result,
        parent_slot=jnp.where(state.ended, -1, state.place_slot),
        roster=roster,
        roster_uid=roster_uid,
        board=board,
    )


def _parents(engine: Engine, state: State, params: Params) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Roster f32[P, R, .], roster uids int32[P, R], board f32[P, M, .]."""
    lives, log, task = state.lives, state.log, engine.task
    num_values, roster_rows = task.num_values, engine.config.roster
    f = lambda x: x.astype(jnp.float32)  # noqa: E731
    held = (state.place_slot >= 0) & ~state.ended
    num_places, n = state.place_slot.shape[0], lives.uid.shape[0]

    # Which slot stands in roster row r of place p.
    row = jnp.where(lives.alive & (lives.home >= 0) & (lives.rank < roster_rows), lives.rank, roster_rows)
    home = jnp.maximum(lives.home, 0)
    index = jnp.where(row < roster_rows, home * roster_rows + row, num_places * roster_rows)
    slot = jnp.full(num_places * roster_rows, -1, jnp.int32).at[index].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    slot = slot.reshape(num_places, roster_rows)
    filled = (slot >= 0) & held[:, None]
    at = lambda x: rows(x, slot)  # noqa: E731
    clock = rows(lives.clock_ms, state.place_slot)[:, None]
    back = at(lives.returned) & (at(lives.arrival_ms) <= clock)
    arrived, idle = back & at(lives.unread), back & ~at(lives.unread)
    columns = [
        f(idle),
        f(arrived),
        f(~idle & ~arrived),
        f(at(lives.brief)),
        f(at(lives.end) - at(lives.start)) / task.num_rows,
        f(jnp.maximum(clock - at(lives.handed_ms), 0)) / 60_000,
        jnp.where(arrived | idle, f(at(lives.offered)), 0.0) / task.num_rows,
    ]
    roster = jnp.where(filled[..., None], jnp.stack(columns, axis=-1), 0.0)
    roster_uid = jnp.where(filled, at(lives.uid), -1)

    # The task's rows as each parent knows them.
    known = jnp.where(held[:, None], rows(lives.known, state.place_slot), jnp.uint32(0))
    votes = claims_.tally(log, known)
    value, confidence = log.column(claims_.VALUE), log.column(claims_.CONFIDENCE)
    zero_tie = jnp.zeros(task.num_rows, jnp.uint32)
    top = claims_.winner(votes.origins, votes.known, value, zero_tie)
    pick = lambda x: jnp.take_along_axis(  # noqa: E731
        jnp.broadcast_to(x, votes.known.shape), jnp.maximum(top, 0)[..., None], axis=-1
    )[..., 0]
    top_value = jnp.where(top >= 0, pick(value), -1)
    others = votes.known & (value != top_value[..., None])
    every = jnp.zeros(top.shape, jnp.int32)
    for k in range(log.per_row):
        every = every | jnp.where(votes.known[..., k], 1 << value[:, k], 0)
    first, last = rows(lives.start, state.place_slot)[:, None], rows(lives.cursor, state.place_slot)[:, None]
    row_place = jnp.arange(task.num_rows, dtype=jnp.int32)
    if num_places == 1:
        handed = (row_place >= first) & (row_place < last)
    else:
        handed = jnp.broadcast_to(state.assigned > 0, top.shape)
    some = top >= 0
    columns = [
        f(handed),
        f(jax.lax.population_count(every)),
        jnp.where(some, f(pick(votes.origins)), 0.0),
        jnp.max(jnp.where(others, f(votes.origins), 0.0), axis=-1),
        jnp.where(some, f(pick(confidence)) * 2.0**-16, 0.0),
        jnp.where(some, f(pick(votes.accepts)), 0.0),
        jnp.where(some, f(pick(votes.rejects)), 0.0),
    ]
    shown = jax.nn.one_hot(top_value, num_values, dtype=jnp.float32)
    board = jnp.concatenate([jnp.stack(columns, axis=-1), shown], axis=-1)
    return roster, roster_uid, jnp.where(held[:, None, None], board, 0.0)
