"""Synthetic event records with the shapes and clocks of a swarm, for tests that need a trace and no engine."""

from types import SimpleNamespace

import numpy as np

WAIT, SPAWN, DELEGATE, MESSAGE, RETURN, AGGREGATE, FOLD, DESPAWN, STOP, TOOL = range(10)
DEFAULTS = {
    "uid": -1,
    "role": 0,
    "parent_uid": -1,
    "kind": WAIT,
    "valid": False,
    "is_decision": False,
    "clock_ms": 0,
    "latency_ms": 0,
    "arrival_ms": -1,
    "target_uid": -1,
    "target_group": 0,
    "claims_sent": 0,
    "refused": 0,
    "end_reason": 0,
    "tick": 0,
}


class Script:
    """Calls written down life by life, then laid out as [T, N] arrays with forced waits in between."""

    def __init__(self):
        self.role, self.parent, self.birth, self.death, self.calls = {}, {}, {}, {}, {}

    def born(self, uid, role, parent, row):
        """A life whose first row comes after `row`."""
        self.role[uid], self.parent[uid], self.birth[uid], self.calls[uid] = role, parent, row + 1, []

    def call(self, uid, kind, start, latency, after=-1, **fields):
        """One call of `latency` ms from `start`, in the next free row after `after`; returns its end and its row."""
        row = max(after + 1, self.calls[uid][-1]["row"] + 1 if self.calls[uid] else self.birth[uid])
        record = {"kind": kind, "clock_ms": start, "latency_ms": latency, "arrival_ms": start + latency, "row": row}
        self.calls[uid].append(record | fields)
        return start + latency, row

    def events(self, rows=None, pad_slots=0):
        """The arrays; `rows` cuts the episode short; slots of the despawned are filled again."""
        last = max(call["row"] for calls in self.calls.values() for call in calls)
        total = rows or last + 1
        free_from, slot_of = [], {}
        for uid in sorted(self.birth, key=lambda uid: (self.birth[uid], uid)):
            slot = next((s for s, free in enumerate(free_from) if free <= self.birth[uid]), len(free_from))
            free_from[slot : slot + 1] = [self.death.get(uid, total) + 1]
            slot_of[uid] = slot
        shape = (total, len(free_from) + pad_slots)
        out = {name: np.full(shape, value) for name, value in DEFAULTS.items()}
        out["tick"][:] = np.arange(total)[:, None]
        for uid, slot in slot_of.items():
            end = min(self.death.get(uid, total - 1), total - 1)
            if self.birth[uid] > end:
                continue
            clock = np.full(total, self.calls[uid][0]["clock_ms"] if self.calls[uid] else 0)
            here = slice(self.birth[uid], end + 1)
            for name, value in (("uid", uid), ("role", self.role[uid]), ("parent_uid", self.parent[uid])):
                out[name][here, slot] = value
            out["valid"][here, slot] = True
            for call in self.calls[uid]:
                row = call["row"]
                if row > end:
                    continue
                for name in call.keys() - {"row"}:
                    out[name][row, slot] = call[name]
                out["is_decision"][row, slot] = True
                clock[row:] = call["clock_ms"]
                clock[row + 1 :] += call["latency_ms"] if call["kind"] != WAIT else 0
            out["clock_ms"][here, slot] = clock[here]
            out["end_reason"][end, slot] = 1 if uid in self.death else 2
        return SimpleNamespace(**out)


def swarm(workers=8, *, seed=0, rounds=2, teams=0, messages=False, despawn=False, idle=0, rows=None):
    """A lead that plans, spawns, waits, aggregates, delegates again and stops.

    Args:
      workers: workers in all; teams: how many sub-leads they stand under (0: under the lead).
      messages: whether workers report to their parent and to their peers; despawn: whether workers end after reading.
      idle: how many of the workers are born without work and return at once; rows: cut the episode after so many.

    Returns:
      Namespace of arrays [T, N]; roles 0 lead, 1 searcher.
    """
    rng = np.random.default_rng(seed)
    script = Script()
    script.born(0, 0, -1, -1)
    count = [0]

    def new(role, parent, row):
        count[0] += 1
        script.born(count[0], role, parent, row)
        return count[0]

    def work(uid, now, row, busy):
        for number in range(rng.integers(3, 8) if busy else 0):
            stalled = rng.random() < 0.06
            latency = int(rng.normal(60_000, 6_000) if stalled else rng.uniform(4_500, 7_500))
            now, row = script.call(uid, TOOL, now, latency, row)
            if messages and rng.random() < 0.25:
                group = 1 if number % 2 else 3
                now, row = script.call(uid, MESSAGE, now, 1_500, row, target_group=group, claims_sent=1)
        return script.call(uid, RETURN, now, int(rng.uniform(1_200, 2_500)), row, claims_sent=2, target_group=1)

    def read(uid, now, row, arrivals):
        """Wait for half, aggregate, wait for the rest, aggregate."""
        times = sorted(end for end, _ in arrivals)
        latest = max((seen for _, seen in arrivals), default=row)
        for target in dict.fromkeys([times[(len(times) - 1) // 2], times[-1]]):
            if target > now:
                _, row = script.call(uid, WAIT, now, 0, row)
                now = target
            now, row = script.call(uid, AGGREGATE, now, int(rng.uniform(4_000, 9_000)), max(row, latest))
        return now, row

    def lead(uid, now, row, size, groups):
        children, batch = [], 8_000
        todo = groups or size
        while todo:
            some = min(todo, 128)
            now, row = script.call(uid, SPAWN, now, batch, row)
            children += [(new(0 if groups else 1, uid, row), now, row) for _ in range(some)]
            todo, batch = todo - some, 3_000
        share = [len(part) for part in np.array_split(np.arange(size), groups)] if groups else []
        for turn in range(1 if groups else rounds):
            if turn:
                now, row = script.call(uid, DELEGATE, now, 5_000, row)
                children = [(child, now, row) for child, _, _ in children]
            arrivals = []
            for place, (child, born, seen) in enumerate(children):
                if groups:
                    end, below = lead(child, born, seen, share[place], 0)
                    arrivals.append(script.call(child, RETURN, end, 2_000, below, claims_sent=2, target_group=1))
                else:
                    arrivals.append(work(child, born, seen, busy=place < len(children) - idle))
            if arrivals:
                now, row = read(uid, now, row, arrivals)
        if despawn and not groups:
            for child, _, _ in children[: len(children) // 2]:
                now, row = script.call(uid, DESPAWN, now, 200, row, target_uid=child)
                script.death[child] = row
        return now, row

    now, row = lead(0, 0, -1, workers, teams) if workers else script.call(0, TOOL, 0, 6_000)
    script.call(0, STOP, now, 3_000, row)
    return script.events(rows=rows, pad_slots=1)


def dense(ticks=4_000, slots=300, seed=0):
    """Every slot makes a call in every tick: the largest trace that this shape can hold."""
    rng = np.random.default_rng(seed)
    shape = (ticks, slots)
    out = {name: np.full(shape, value) for name, value in DEFAULTS.items()}
    out["tick"][:] = np.arange(ticks)[:, None]
    out["uid"][:] = np.arange(slots)
    out["uid"][0, 1:] = -1
    out["role"][:, 1:] = 1
    out["parent_uid"][:, 1:] = 0
    out["kind"] = rng.choice([TOOL, TOOL, TOOL, TOOL, MESSAGE, RETURN, WAIT], shape)
    out["kind"][:, 0] = rng.choice([WAIT, DELEGATE, AGGREGATE], ticks)
    out["kind"][0, 0], out["kind"][-1, 0] = SPAWN, STOP
    out["valid"][:] = out["is_decision"][:] = True
    out["latency_ms"] = rng.integers(500, 9_000, shape)
    out["clock_ms"] = np.cumsum(out["latency_ms"], axis=0) - out["latency_ms"]
    out["clock_ms"][1:, 1:] += out["latency_ms"][0, 0] - out["clock_ms"][1, 1:]
    out["arrival_ms"] = out["clock_ms"] + out["latency_ms"]
    out["target_group"] = np.where(out["kind"] == MESSAGE, 1, 0)
    out["claims_sent"][:] = 1
    return SimpleNamespace(**out)
