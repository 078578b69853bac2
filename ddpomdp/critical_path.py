"""Calls, edges and the critical path of one episode, from its event records. Pure NumPy, on the host.

Axis letters: T tick, N slot, K call, U life, E edge, P step of the critical path. Times are integer milliseconds of
the logical clock. A *call* is an event that means something in time: everything except forced waits and turns that
were not valid. Which call explains which is read from clocks and arrivals alone (model.md, sections 3 and 5):

    spawn     parent's SPAWN       -> the child's first call
    delegate  parent's DELEGATE    -> the call with which an idle child resumes (the last hand-out before it)
    return    child's RETURN       -> the parent's first AGGREGATE at or after the arrival (none once the child is gone)
    message   sender's MESSAGE     -> each receiver's first call at or after the arrival
    wait      RETURN or MESSAGE    -> the call that ends a chosen wait exactly at that arrival
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ddpomdp.enums import EventKind, Group, LifeEnd

EDGE_KINDS = ("spawn", "delegate", "return", "message", "wait")

_REQUIRED = ("uid", "role", "parent_uid", "kind", "valid", "is_decision", "clock_ms", "latency_ms", "arrival_ms")
_OPTIONAL = {"target_uid": -1, "target_group": 0, "claims_sent": 1, "refused": 0, "end_reason": 0}


class Call(NamedTuple):
    """One call: who, what, when (ms), and in which row (tick) and slot of the events it stands."""

    uid: int
    kind: EventKind
    start_ms: int
    end_ms: int
    arrival_ms: int
    row: int
    slot: int


class Edge(NamedTuple):
    """One edge: its kind (one of `EDGE_KINDS`) and the indices of the calls it joins."""

    kind: str
    source: int
    target: int


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls sorted by life, then row: `len`, indexing and iteration give `Call`s, attributes give columns."""

    life: np.ndarray  # int64[K]  index into Lives
    uid: np.ndarray  # int64[K]
    kind: np.ndarray  # int64[K]  EventKind
    start_ms: np.ndarray  # int64[K]
    end_ms: np.ndarray  # int64[K]  of a chosen wait: the start of that life's next call
    arrival_ms: np.ndarray  # int64[K]  never before end_ms; -1: reaches nobody
    row: np.ndarray  # int64[K]
    slot: np.ndarray  # int64[K]
    target_uid: np.ndarray  # int64[K]  -1: none
    target_group: np.ndarray  # int64[K]  Group
    claims_sent: np.ndarray  # int64[K]
    refused: np.ndarray  # int64[K]

    def __len__(self) -> int:
        return len(self.uid)

    def __getitem__(self, index: int) -> Call:
        return Call(
            uid=int(self.uid[index]),
            kind=EventKind(int(self.kind[index])),
            start_ms=int(self.start_ms[index]),
            end_ms=int(self.end_ms[index]),
            arrival_ms=int(self.arrival_ms[index]),
            row=int(self.row[index]),
            slot=int(self.slot[index]),
        )

    def __iter__(self) -> Iterator[Call]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges sorted by kind, then target: `len`, indexing and iteration give `Edge`s, attributes give columns."""

    kind: np.ndarray  # int64[E]  index into EDGE_KINDS
    source: np.ndarray  # int64[E]  index into Calls
    target: np.ndarray  # int64[E]  index into Calls; its row is always after the source's

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, index: int) -> Edge:
        return Edge(EDGE_KINDS[int(self.kind[index])], int(self.source[index]), int(self.target[index]))

    def __iter__(self) -> Iterator[Edge]:
        return (self[index] for index in range(len(self)))

    def of(self, kind: str) -> "Edges":
        """The edges of one kind."""
        keep = self.kind == EDGE_KINDS.index(kind)
        return Edges(self.kind[keep], self.source[keep], self.target[keep])


@dataclass(frozen=True, eq=False)
class Lives:
    """Lives sorted by uid; row 0 is the root."""

    uid: np.ndarray  # int64[U]
    role: np.ndarray  # int64[U]
    parent: np.ndarray  # int64[U]  index of the life that bore it, -1 for none in this trace
    start_ms: np.ndarray  # int64[U]  end of the SPAWN that bore it
    end_ms: np.ndarray  # int64[U]
    born_by: np.ndarray  # int64[U]  index of that SPAWN in Calls, -1 for none
    despawned: np.ndarray  # bool[U]

    def __len__(self) -> int:
        return len(self.uid)


@dataclass(frozen=True, eq=False)
class Timeline:
    """What happened when in one episode, and because of what."""

    lives: Lives
    calls: Calls
    edges: Edges
    critical: np.ndarray  # int64[P]  indices of the calls on the critical path, first to last
    wall_ms: int  # end of the root's last call
    serial_ms: int  # sum of the durations of all calls except waits


def timeline(events: Any) -> Timeline:
    """Derive calls, edges and the critical path of one episode.

    Args:
      events: any object with array attributes of shape [T, N], rows in time order: uid (-1 empty slot), role,
        parent_uid (-1 none), kind, valid and is_decision (True means yes), clock_ms, latency_ms, arrival_ms; and, where
        present, target_uid (-1 none), target_group, claims_sent, refused, end_reason.

    Returns:
      The `Timeline`. The critical path goes back from the root's last call, at each call to what set its start: the
      call that bore or resumed the life, the return or message that ended a wait, else the life's own previous call.

    Raises:
      ValueError: a field is missing or not [T, N], no slot was ever alive, or a life's clock runs backwards.
    """
    fields = _columns(events)
    presence = _Presence(fields)
    calls = _calls(fields, presence)
    born_by, spawn = _spawn_edges(calls, presence)
    lives = _lives(fields, presence, calls, born_by)
    calls = _end_waits(calls, lives)
    by, ended = _despawns(presence, calls)
    gone_row = np.full(len(lives), presence.rows)
    gone_row[ended] = calls.row[by]
    sent, receiver = _mail(presence, calls)
    read = _return_edges(calls, presence, gone_row)
    heard = _message_edges(calls, sent, receiver)
    resumed = _delegate_edges(presence, calls)
    awaited = _wait_edges(calls, presence, sent, receiver)
    edges = _join([spawn, resumed, read, heard, awaited])
    mine = np.flatnonzero(calls.life == 0)
    work = calls.kind != EventKind.WAIT
    return Timeline(
        lives=lives,
        calls=calls,
        edges=edges,
        critical=critical_path(calls, edges),
        wall_ms=int(calls.end_ms[mine].max()) if mine.size else 0,
        serial_ms=int((calls.end_ms - calls.start_ms)[work].sum()),
    )


def critical_path(calls: Calls, edges: Edges) -> np.ndarray:
    """Walk back from the root's last call to whatever set each call's start.

    Returns:
      int64[P], indices of calls, first to last; empty where the root made no call.
    """
    cause = np.arange(len(calls)) - 1
    cause[~_follows(calls)] = -1
    for kind in ("wait", "delegate", "spawn"):
        of_kind = edges.of(kind)
        cause[of_kind.target] = of_kind.source
    path = []
    here = int(np.searchsorted(calls.life, 0, side="right")) - 1
    while here >= 0:
        path.append(here)
        here = int(cause[here])
    return np.array(path[::-1], np.int64)


def _columns(events: Any) -> dict[str, np.ndarray]:
    """The fields as int64[T, N]."""
    missing = [name for name in _REQUIRED if not hasattr(events, name)]
    if missing:
        raise ValueError(f"events lack the fields {', '.join(missing)}; needed are {', '.join(_REQUIRED)}")
    shape = np.shape(events.uid)
    if len(shape) != 2:
        raise ValueError(f"events.uid has shape {shape}; one episode is [T, N] (ticks x slots)")
    fields = {name: np.asarray(getattr(events, name)) for name in _REQUIRED}
    for name, default in _OPTIONAL.items():
        fields[name] = np.asarray(getattr(events, name)) if hasattr(events, name) else np.full(shape, default)
    for name, value in fields.items():
        if value.shape != shape:
            raise ValueError(f"events.{name} has shape {value.shape}; events.uid has {shape}")
    if not (fields["uid"] >= 0).any():
        raise ValueError("events hold no life: every uid is -1")
    # After the last turn of an episode come rows in which nothing is valid and nothing means anything.
    lived = np.flatnonzero(fields["valid"].any(axis=1))
    rows = int(lived[-1]) + 1 if lived.size and (fields["uid"][: lived[-1] + 1] >= 0).any() else shape[0]
    return {name: value[:rows].astype(np.int64) for name, value in fields.items()}


class _Presence:
    """Who was alive in which row, and whose child; entries sorted by life, then row."""

    def __init__(self, fields: dict[str, np.ndarray]):
        row, slot = np.nonzero(fields["uid"] >= 0)
        self.uid, life = np.unique(fields["uid"][row, slot], return_inverse=True)
        order = np.lexsort((row, life))
        self.row, self.slot, self.life = row[order], slot[order], life[order]
        self.rows = len(fields["uid"])
        self.clock = fields["clock_ms"][self.row, self.slot]
        self.parent = self.index(fields["parent_uid"][self.row, self.slot])
        self.first = np.searchsorted(self.life, np.arange(len(self.uid)))  # entry of each life's first row
        self.last = np.append(self.first[1:], len(self.life)) - 1
        backwards = (np.diff(self.clock) < 0) & (np.diff(self.life) == 0)
        if backwards.any():
            raise ValueError(
                f"clock_ms of uid {self.uid[self.life[1:][backwards][0]]} runs backwards; events must hold one episode"
            )

    def index(self, uid: np.ndarray) -> np.ndarray:
        """The life with each uid, -1 where there is none."""
        place = np.minimum(np.searchsorted(self.uid, uid), len(self.uid) - 1)
        return np.where(self.uid[place] == uid, place, -1)

    def parent_at(self, life: np.ndarray, row: np.ndarray) -> np.ndarray:
        """The parent of a life in a row, by its last entry up to that row."""
        entry = _last_at(self.life, self.row, life, row)
        return np.where(entry >= 0, self.parent[entry], -1)

    def alive(self, life: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Whether a life lives in a row."""
        return (self.row[self.first[life]] <= row) & (row <= self.row[self.last[life]])


def _key(major: np.ndarray, minor: np.ndarray) -> np.ndarray:
    """One sortable int64 of a life (or -1) and a time or row below 2**40."""
    return (major + 1) * 2**40 + minor


def _last_at(lives: np.ndarray, times: np.ndarray, life: np.ndarray, time: np.ndarray) -> np.ndarray:
    """In a table sorted by (life, time): the last entry of each life at or before a time, -1 where there is none."""
    entry = np.searchsorted(_key(lives, times), _key(life, time), side="right") - 1
    return np.where((entry >= 0) & (lives[np.maximum(entry, 0)] == life), entry, -1) if lives.size else entry


def _first_at(lives: np.ndarray, times: np.ndarray, life: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The position of the first entry of each life at or after a time; it may belong to the next life."""
    return np.searchsorted(_key(lives, times), _key(life, time), side="left")


def _follows(calls: Calls) -> np.ndarray:
    """bool[K]: the call before this one belongs to the same life."""
    return np.append(False, calls.life[1:] == calls.life[:-1])[: len(calls)]


def _calls(fields: dict[str, np.ndarray], presence: _Presence) -> Calls:
    row, slot, life = presence.row, presence.slot, presence.life
    kind = fields["kind"][row, slot]
    drawn = (fields["valid"][row, slot] != 0) & ((kind != EventKind.WAIT) | (fields["is_decision"][row, slot] != 0))
    row, slot, life, kind = row[drawn], slot[drawn], life[drawn], kind[drawn]
    start = fields["clock_ms"][row, slot]
    end = start + np.maximum(fields["latency_ms"][row, slot], 0)
    arrival = fields["arrival_ms"][row, slot]
    arrival = np.where(arrival < 0, -1, np.maximum(arrival, end))
    sent = (fields[name][row, slot] for name in ("target_uid", "target_group", "claims_sent", "refused"))
    return Calls(life, presence.uid[life], kind, start, end, arrival, row, slot, *sent)


def _end_waits(calls: Calls, lives: Lives) -> Calls:
    """Chosen waits last until the life's next call, or else until the end of the life."""
    end = np.where(calls.kind == EventKind.WAIT, np.maximum(lives.end_ms[calls.life], calls.start_ms), calls.end_ms)
    until_next = np.flatnonzero((calls.kind[:-1] == EventKind.WAIT) & _follows(calls)[1:])
    end[until_next] = calls.start_ms[until_next + 1]
    return replace(calls, end_ms=end, arrival_ms=np.where(calls.kind == EventKind.WAIT, end, calls.arrival_ms))


def _spawn_edges(calls: Calls, presence: _Presence) -> tuple[np.ndarray, tuple[str, np.ndarray, np.ndarray]]:
    """The SPAWN that bore each life: its parent's last one before the life's first row."""
    spawns = np.flatnonzero(calls.kind == EventKind.SPAWN)
    mother = presence.parent[presence.first]
    entry = _last_at(calls.life[spawns], calls.row[spawns], mother, presence.row[presence.first] - 1)
    born_by = np.where(entry >= 0, spawns[entry], -1) if spawns.size else np.full(len(mother), -1)
    first_call = np.searchsorted(calls.life, np.arange(len(mother)))
    acted = np.searchsorted(calls.life, np.arange(len(mother)), side="right") > first_call
    known = (born_by >= 0) & acted
    return born_by, ("spawn", born_by[known], first_call[known])


def _lives(fields: dict[str, np.ndarray], presence: _Presence, calls: Calls, born_by: np.ndarray) -> Lives:
    first, last = presence.first, presence.last
    busy = calls.kind != EventKind.WAIT
    horizon = max(int(presence.clock.max()), int(calls.end_ms[busy].max(initial=0)))
    mine = calls.life == 0
    stops = calls.end_ms[mine & (calls.kind == EventKind.STOP)]
    wall = int(stops[-1]) if stops.size else horizon
    latest = presence.clock[last].copy()
    np.maximum.at(latest, calls.life[busy], calls.end_ms[busy])
    # A life ends with the DESPAWN that names it, else with the last row that says so, else with the episode.
    despawned = fields["end_reason"][presence.row[last], presence.slot[last]] == LifeEnd.DESPAWNED
    end = np.where(despawned, latest, np.maximum(latest, wall))
    by, ended = _despawns(presence, calls)
    end[ended], despawned[ended] = np.maximum(calls.end_ms[by], latest[ended]), True
    return Lives(
        uid=presence.uid,
        role=fields["role"][presence.row[first], presence.slot[first]],
        parent=presence.parent[first],
        start_ms=np.where(born_by >= 0, calls.end_ms[born_by] if len(calls) else 0, presence.clock[first]),
        end_ms=end,
        born_by=born_by,
        despawned=despawned,
    )


def _despawns(presence: _Presence, calls: Calls) -> tuple[np.ndarray, np.ndarray]:
    """DESPAWN calls and the lives they ended."""
    by = np.flatnonzero(calls.kind == EventKind.DESPAWN)
    life = presence.index(calls.target_uid[by])
    done = (life >= 0) & (calls.refused[by] == 0)
    return by[done], life[done]


def _mail(presence: _Presence, calls: Calls) -> tuple[np.ndarray, np.ndarray]:
    """Every (MESSAGE call, receiving life): what was sent, not empty, not refused, to somebody alive."""
    sent = (calls.kind == EventKind.MESSAGE) & (calls.arrival_ms >= 0)
    sent &= calls.claims_sent > 0
    group = calls.target_group
    to_group = sent & ((group == Group.CHILDREN) | (group == Group.PEERS))
    one = np.flatnonzero(sent & ~to_group)
    target = presence.index(calls.target_uid[one])
    up = presence.parent_at(calls.life[one], calls.row[one])
    receiver = np.where((group[one] == Group.PARENT) & (target < 0), up, target)
    kept = (receiver >= 0) & (calls.refused[one] == 0)
    sources, receivers = [one[kept]], [receiver[kept]]

    many = np.flatnonzero(to_group)
    up = presence.parent_at(calls.life[many], calls.row[many])
    head = np.where(group[many] == Group.CHILDREN, calls.life[many], up)
    for parent in np.unique(head[head >= 0]):
        family = np.unique(presence.life[presence.parent == parent])
        source = np.repeat(many[head == parent], len(family))
        to = np.tile(family, len(source) // max(len(family), 1))
        row = calls.row[source]
        here = presence.alive(to, row) & (presence.parent_at(to, row) == parent) & (to != calls.life[source])
        sources.append(source[here])
        receivers.append(to[here])
    return np.concatenate(sources), np.concatenate(receivers)


def _message_edges(calls: Calls, sent: np.ndarray, receiver: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
    """Each receiver's first call at or after the arrival that stands in a later row."""
    target = np.maximum(
        _first_at(calls.life, calls.start_ms, receiver, calls.arrival_ms[sent]),
        _first_at(calls.life, calls.row, receiver, calls.row[sent] + 1),
    )
    heard = target < len(calls)
    heard[heard] = calls.life[target[heard]] == receiver[heard]
    return "message", sent[heard], target[heard]


def _return_edges(calls: Calls, presence: _Presence, gone_row: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
    """The first AGGREGATE at or after the arrival by the parent, or by the ancestor the child was handed to."""
    returns = np.flatnonzero((calls.kind == EventKind.RETURN) & (calls.arrival_ms >= 0))
    reads = np.flatnonzero(calls.kind == EventKind.AGGREGATE)
    child = calls.life[returns]
    target = np.full(len(returns), -1)
    for parent in (presence.parent[presence.last[child]], presence.parent_at(child, calls.row[returns])):
        place = _first_at(calls.life[reads], calls.start_ms[reads], parent, calls.arrival_ms[returns])
        found = (place < len(reads)) & (parent >= 0)
        found[found] = calls.life[reads[place[found]]] == parent[found]
        target[found] = reads[place[found]]
    read = np.flatnonzero(target >= 0)
    row = calls.row[target[read]]
    read = read[(row > calls.row[returns[read]]) & (row <= gone_row[child[read]])]
    return "return", returns[read], target[read]


def _delegate_edges(presence: _Presence, calls: Calls) -> tuple[str, np.ndarray, np.ndarray]:
    """For each call after a RETURN: its parent's last DELEGATE before it, to it or to all idle children."""
    resumed = np.flatnonzero(_follows(calls))
    resumed = resumed[calls.kind[resumed - 1] == EventKind.RETURN]
    child = calls.life[resumed]
    parent = presence.parent_at(child, calls.row[resumed])
    orders = np.flatnonzero(calls.kind == EventKind.DELEGATE)
    to = presence.index(calls.target_uid[orders])
    everybody = orders[calls.target_uid[orders] < 0]
    single, to = orders[to >= 0], to[to >= 0]
    single = single[np.lexsort((calls.row[single], to))]
    to = np.sort(to)
    source = np.full(len(resumed), -1)
    for table, owner, asked in ((everybody, calls.life[everybody], parent), (single, to, child)):
        entry = _last_at(owner, calls.row[table], asked, calls.row[resumed] - 1)
        found = np.flatnonzero(entry >= 0)
        source[found] = np.where(
            calls.row[table[entry[found]]] > np.where(source[found] < 0, -1, calls.row[source[found]]),
            table[entry[found]],
            source[found],
        )
    caused = (source >= 0) & (calls.row[source] > calls.row[resumed - 1])
    caused &= calls.end_ms[source] <= calls.start_ms[resumed]
    return "delegate", source[caused], resumed[caused]


def _wait_edges(
    calls: Calls, presence: _Presence, sent: np.ndarray, receiver: np.ndarray
) -> tuple[str, np.ndarray, np.ndarray]:
    """For each call after a chosen wait: the return or message that arrived exactly at its start."""
    returns = np.flatnonzero((calls.kind == EventKind.RETURN) & (calls.arrival_ms >= 0))
    source = np.concatenate([returns, sent])
    to = np.concatenate([presence.parent_at(calls.life[returns], calls.row[returns]), receiver])
    source, to = source[to >= 0], to[to >= 0]
    # Several may arrive together: the one that ended last, then the smallest uid, stands last in its group.
    order = np.lexsort((-calls.uid[source], calls.end_ms[source], calls.arrival_ms[source], to))
    source, to = source[order], to[order]
    woken = np.flatnonzero(_follows(calls))
    woken = woken[calls.kind[woken - 1] == EventKind.WAIT]
    entry = _last_at(to, calls.arrival_ms[source], calls.life[woken], calls.start_ms[woken])
    woken, entry = woken[entry >= 0], entry[entry >= 0]
    cause = source[entry]
    exact = (calls.arrival_ms[cause] == calls.start_ms[woken]) & (calls.row[cause] < calls.row[woken])
    return "wait", cause[exact], woken[exact]


def _join(tables: list[tuple[str, np.ndarray, np.ndarray]]) -> Edges:
    kind = np.concatenate([np.full(len(source), EDGE_KINDS.index(name)) for name, source, _ in tables])
    source = np.concatenate([source for _, source, _ in tables])
    target = np.concatenate([target for _, _, target in tables])
    order = np.lexsort((source, target, kind))
    return Edges(kind[order], source[order], target[order])
