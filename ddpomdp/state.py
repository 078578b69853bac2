"""The state of an episode. Hidden from policies; `TimeStep` shows the part each agent may know.

Axis letters: N slot, P parent place, M row, Q queue place, C newest claims, W words of a claim set, U life.
"""

from typing import Any

import jax

from ddpomdp.claims import Log, Masks
from ddpomdp.harness import Legal
from ddpomdp.pytree import pytree


@pytree
class Lives:
    """One life per slot. Fields of empty slots are meaningless and influence nothing."""

    # Who.
    alive: jax.Array  # bool[N]     also of those whom the episode's end found alive
    seen: jax.Array  # bool[N]     its view is shown: it is alive, or left in this tick
    uid: jax.Array  # int32[N]    -1 empty
    role: jax.Array  # int32[N]
    depth: jax.Array  # int32[N]    root 0
    lineage: jax.Array  # uint32[N,2]
    home: jax.Array  # int32[N]    place of the parent, -1 root
    place: jax.Array  # int32[N]    own parent place, -1 none
    # When.
    turn: jax.Array  # int32[N]    own turns so far
    clock_ms: jax.Array  # int32[N]    free to decide from here on
    steps: jax.Array  # int32[N]    critical steps, in thousandths, by the clock's rules
    since_ms: jax.Array  # int32[N]    start of the present parent link; nothing arrives upwards before it
    blocked: jax.Array  # bool[N]     gate or wait: the next turn is forced
    waiting: jax.Array  # int32[N]    0 no, 1 + WaitFor
    wait_left: jax.Array  # int32[N]    arrivals still awaited by `half`
    deadline_ms: jax.Array  # int32[N]
    lifted: jax.Array  # bool[N]     `lead_blocks` is lifted: deadline met or mail arrived
    # Work handed out.
    returned: jax.Array  # bool[N]     returned and not delegated to since
    unread: jax.Array  # bool[N]     its return has not been read
    arrival_ms: jax.Array  # int32[N]    of its return at the parent
    offer: jax.Array  # int32[N,2]  claims and detail tokens of its return
    offered: jax.Array  # int32[N]    claims in its return
    ever_returned: jax.Array  # bool[N]
    start: jax.Array  # int32[N]    window into the queue: start
    end: jax.Array  # int32[N]    end (exclusive)
    cursor: jax.Array  # int32[N]    next place to work on or hand out
    brief: jax.Array  # int32[N]    level of the last brief
    handed_ms: jax.Array  # int32[N]    clock of the last hand-out
    handed_rows: jax.Array  # int32[N]    rows its parent handed out to it then (a misread brief may work on others)
    planned: jax.Array  # bool[N]     has handed out before
    again: jax.Array  # int32[N]    offset of the next `again` in the own window
    rank: jax.Array  # int32[N]    roster row in the parent's roster, from 0
    # What it knows.
    known: jax.Array  # uint32[N,W] claims known
    fresh: jax.Array  # uint32[N,W] known and not sent since the last hand-out
    newest: jax.Array  # int32[N,C]  places in the log, newest first, -1 none
    load: jax.Array  # f32[N]      reading load so far
    # What it has spent and heard.
    spent: jax.Array  # int32[N]    tokens: own and those of children it has read
    unreported: jax.Array  # int32[N]    part of `spent` its parent has not read
    last_tool: jax.Array  # int32[N]    tool of the last turn, -1 none
    last_code: jax.Array  # int32[N]    ResultCode
    last_value: jax.Array  # int32[N]    task value of the last result, -1 none
    task: Any  # pytree [N,...]  the task's own fields per life


@pytree
class Mail:
    """One mailbox place per life; messages that meet at one receiver in a tick are merged."""

    claims: jax.Array  # uint32[N,W]
    count: jax.Array  # int32[N]    messages merged, 0: the place is empty
    arrival_ms: jax.Array  # int32[N]
    steps: jax.Array  # int32[N]    critical steps of the sender
    sender: jax.Array  # int32[N]    uid
    load: jax.Array  # f32[N]      reading load it brings to a parent


@pytree
class Board:
    """The task's rows as each parent knows them: its votes. Axes P parent place, M row."""

    values: jax.Array  # int32[P,M]  different values known
    top_value: jax.Array  # int32[P,M]  value with most origins, -1 none
    top_origins: jax.Array  # int32[P,M]
    second_origins: jax.Array  # int32[P,M]  of the best other value
    confidence: jax.Array  # int32[P,M]  of a claim with the top value, in 2**-16
    accepts: jax.Array  # int32[P,M]  verdicts on the top value
    rejects: jax.Array  # int32[P,M]
    extra: list[jax.Array]  # [P,M] per name in the task's `board_features`


@pytree
class Totals:
    """Counters of an episode; times and tokens are exact integers."""

    tokens: jax.Array  # int32[4]    by COST_PURPOSES
    turns: jax.Array  # int32[]     turns other than wait
    decisions: jax.Array  # int32[]
    serial_s: jax.Array  # int32[]     sum of all call durations: whole seconds
    serial_ms: jax.Array  # int32[]     and milliseconds below one second
    births: jax.Array  # int32[]
    returned_lives: jax.Array  # int32[]  lives that returned at least once
    deaths: jax.Array  # int32[]     despawns
    adopted: jax.Array  # int32[]     re-parented lives
    illegal: jax.Array  # int32[]
    refused_births: jax.Array  # int32[]
    refused_places: jax.Array  # int32[]  spawns or aggregations for want of a parent place
    refused_rows: jax.Array  # int32[]
    refused_claims: jax.Array  # int32[]
    empty_selections: jax.Array  # int32[]
    lost_returns: jax.Array  # int32[]  returns despawned unread
    mail_sent: jax.Array  # int32[]     messages, one per receiver
    mail_delivered: jax.Array  # int32[]
    mail_undeliverable: jax.Array  # int32[]
    mail_late: jax.Array  # int32[]     delivered at the receiver's clock, after the sender's end
    mail_late_ms: jax.Array  # int32[]     longest lateness
    beyond_end_s: jax.Array  # int32[]     seconds that lives had worked beyond the root's end


@pytree
class State:
    """Everything an episode is."""

    lives: Lives
    mail: Mail
    log: Log
    masks: Masks | Any  # of the log (ValueMasks in tasks with `by_value`)
    board: Board
    roster_slot: jax.Array  # int32[P,R]  slot of each roster row, -1 empty
    legal: Legal  # of the next turns
    place_slot: jax.Array  # int32[P]    slot of the parent in each place, -1 free
    queue: jax.Array  # int32[Q]    rows to work on, M of them at first
    queue_len: jax.Array  # int32[]
    assigned: jax.Array  # int32[M]    how often each row was handed to a child
    answer: jax.Array  # int32[M]    set of reported values, bit v: value v; the root's last aggregate
    answer_claim: jax.Array  # int32[M]    place k of the winning claim of each row, -1 none
    told_root: jax.Array  # uint32[W]   claims returned to the root, before any were lost
    quality: jax.Array  # f32[]       of the present answer
    late: jax.Array  # f32[U]      individual reward due to lives that have ended
    next_uid: jax.Array  # int32[]
    born: jax.Array  # int32[roles] lives per role so far
    totals: Totals
    task: Any  # pytree      the task's hidden facts
    tick: jax.Array  # int32[]
    ended: jax.Array  # bool[]
    stop_reason: jax.Array  # int32[]     StopReason
