"""What agents see: features of themselves, their newest claims, their last result; rosters and boards of parents.

Only what has arrived by the agent's own clock is shown: a child that has returned but not arrived looks exactly like
one at work. No tick, no truth, no luck, no taint. Axis letters: N slot, C claim, P parent place, R roster row, M row.
"""

import jax
import jax.numpy as jnp

from ddpomdp import claims as claims_
from ddpomdp import clocks as clocks_
from ddpomdp import handout
from ddpomdp.params import Params
from ddpomdp.pytree import Fields, flags, replace, rows, stacked
from ddpomdp.rules import Rules
from ddpomdp.state import State
from ddpomdp.timestep import Observation

# Names that end in _id hold a category as a number, -1 for none.
CLAIM_FEATURES = ("row", "value_id", "confidence", "own")
ROSTER_FEATURES = ("idle", "unread", "running", "brief", "rows_handed", "handed_ago_min", "claims_offered")
BOARD_FEATURES = (
    "handed",
    "values",
    "top_value_id",
    "top_origins",
    "second_origins",
    "top_confidence",
    "accepts",
    "rejects",
)
RESULT_FEATURES = ("tool_id", "code_id", "value_id")


def self_features(rules: Rules) -> tuple[str, ...]:
    """Names of the features in `Observation.self`."""
    roles = tuple(f"is_{name}" for name in rules.task.roles)
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
        *rules.task.self_features,
    )


def claim_features(rules: Rules) -> tuple[str, ...]:
    """Names of the features in `Observation.claims`: the common ones, then the task's."""
    return (*CLAIM_FEATURES, *getattr(rules.task, "claim_features", ()))


def board_features(rules: Rules) -> tuple[str, ...]:
    """Names of the features in `Observation.board`."""
    return (*BOARD_FEATURES, *getattr(rules.task, "board_features", ()))


def _own_features(rules: Rules, state: State, params: Params) -> list[jax.Array | Fields]:
    """The task's features of each agent."""
    lives, task = state.lives, rules.further
    if not hasattr(task, "see"):
        return task.observe(lives.task, params.task)
    row = state.queue[jnp.clip(lives.cursor, 0, state.queue.shape[0] - 1)]
    return task.see(state.task, lives.task, row, lives.cursor < lives.end, params.task)


def observe(rules: Rules, state: State, params: Params) -> Observation:
    """Observations of all slots."""
    lives, task, log = state.lives, rules.task, state.log
    num_rows = task.num_rows
    below = clocks_.children(lives, state.place_slot)
    own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
    here = lives.seen
    f = lambda x: x.astype(jnp.float32)  # noqa: E731
    columns = [
        Fields(1 << lives.role, 1, len(task.roles)),
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
        Fields(flags(lives.lifted, lives.planned, lives.returned, lives.blocked), 1, 4),
        *_own_features(rules, state, params),
    ]
    own_view = _table(columns, here)

    code = jnp.where(lives.turn > 0, lives.last_code, -1)
    result = _table([f(lives.last_tool), f(code), f(lives.last_value)], here)

    place = lives.newest
    entry = claims_.entry(log, place)  # [N, C]
    columns = [
        f(claims_.row_and_k(place, log.per_row)[0]) / num_rows,
        f(entry.value),
        f(entry.confidence) * 2.0**-16,
        f((entry.origin == lives.uid[:, None]) & ((entry.flags & claims_.IS_TWIN) == 0)),
        *(rules.further.observe_claims(log, lives.known, place, params.task) if claim_features(rules)[4:] else ()),
    ]
    claims = _table(columns, here[:, None] & (place >= 0))
    roster, roster_uid, board = _parents(rules, state, params)
    return Observation(
        self=own_view,
        claims=claims,
        last_result=result,
        parent_slot=state.place_slot,
        roster=roster,
        roster_uid=roster_uid,
        board=board,
    )


def _parents(rules: Rules, state: State, params: Params) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Roster f32[P, R, .], roster uids int32[P, R], board f32[P, M, .]."""
    lives, task = state.lives, rules.task
    f = lambda x: x.astype(jnp.float32)  # noqa: E731
    held = state.place_slot >= 0

    slot = state.roster_slot
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
        f(at(lives.handed_rows)) / task.num_rows,
        f(jnp.maximum(clock - at(lives.handed_ms), 0)) / 60_000,
        jnp.where(arrived | idle, f(at(lives.offered)), 0.0) / task.num_rows,
    ]
    roster = _table(columns, filled)
    roster_uid = jnp.where(filled, at(lives.uid), -1)

    # The task's rows as each parent knows them.
    known = state.board
    handed = handout.handed_out(rules, state)
    columns = [
        f(handed),
        f(known.values),
        f(known.top_value),
        f(known.top_origins),
        f(known.second_origins),
        f(known.confidence) * 2.0**-16,
        f(known.accepts),
        f(known.rejects),
        *map(f, known.extra),
    ]
    return roster, roster_uid, _table(columns, held[:, None])


def _table(columns: list[jax.Array | Fields], filled: jax.Array) -> jax.Array:
    """f32[..., F] of F columns, zeros where not `filled`; masked column by column, so that stacking is a copy."""
    mask = lambda x: jnp.where(filled, x, jnp.zeros_like(x))  # noqa: E731
    return stacked([replace(x, word=mask(x.word)) if isinstance(x, Fields) else mask(x) for x in columns])
