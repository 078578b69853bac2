"""What the twin shows of itself, in the shape of a `TimeStep`: nested dictionaries of numpy arrays."""

import numpy as np

from twin.engine import CHANNELS, CODES, DECISIONS, KINDS, F

BOUNDS = ("wait_for", "spawn_role", "idle_rows", "child_rows", "own_claims")


def time_step(twin) -> dict:
    """Everything a `TimeStep` says."""
    n = twin.capacity
    seen = [None] * n
    for life in [*twin.ended.values(), *twin.lives.values()]:
        seen[life.slot] = life
    shown = seen
    if twin.last:
        over = not twin.records
        seen = [None] * n if over else seen
    records = [None] * n
    for r in twin.records.values():
        records[r.life.slot] = r
    alive = [life is not None and life.uid in twin.lives and not twin.last for life in seen]
    here = [life if up else None for life, up in zip(seen, alive, strict=True)]
    channels = {name: np.asarray([r.channels[name] if r else 0 for r in records], F) for name in CHANNELS}
    reward = sum((twin.weights[name] * values for name, values in channels.items()), np.zeros(n, F))
    column = lambda what, empty, kind: np.asarray([empty if x is None else what(x) for x in seen], kind)  # noqa: E731
    return {
        "observation": observation(twin, shown),
        "legal": legal(twin, here),
        "reward": reward,
        "channels": channels,
        "terminated": np.asarray([bool(r and r.terminated) for r in records]),
        "truncated": np.asarray([bool(r and r.truncated) for r in records]),
        "alive": np.asarray(alive),
        "uid": column(lambda x: x.uid, -1, np.int32),
        "lineage": np.asarray([(0, 0) if x is None else x.lineage for x in seen], np.uint32),
        "turn": column(lambda x: x.turn, 0, np.int32),
        "blocked": np.asarray([x is not None and x.blocked for x in here]),
        "last": np.asarray(twin.last),
        "stop_reason": np.asarray(twin.stop_reason, np.int32),
        "events": events(twin, records, channels),
        "info": info(twin),
    }


def legal(twin, here) -> dict:
    forced = {"tools": {"wait"}, "whom": set(), "bounds": {"wait_for": 1}}
    rows = [forced if life is None else twin.legal[life.uid] for life in here]
    bits = lambda names: sum(1 << twin.names.index(name) for name in names)  # noqa: E731
    return {
        "tools": np.asarray([bits(row["tools"]) for row in rows], np.int32),
        "whom": np.asarray([sum(1 << i for i in row["whom"]) for row in rows], np.int32),
        "bounds": np.asarray([[row["bounds"].get(name, 0) for name in BOUNDS] for row in rows], np.int32),
    }


def events(twin, records, channels) -> dict:
    a = 1 + twin.spec.num_args
    column = lambda what, empty=0, kind=np.int32: np.asarray([empty if r is None else what(r) for r in records], kind)  # noqa: E731
    kind = lambda r: KINDS.get(r.tool, 9)  # noqa: E731
    return {
        "tick": np.full(len(records), twin.tick, np.int32),
        "uid": column(lambda r: r.life.uid, -1),
        "slot": np.arange(len(records), dtype=np.int32),
        "role": column(lambda r: r.life.role),
        "parent_uid": column(lambda r: r.parent, -1),
        "kind": column(kind),
        "decision": column(lambda r: DECISIONS.get(r.tool, 0) if r.decision else 0),
        "tokens": np.asarray([[0] * a if r is None else r.tokens for r in records], np.int32),
        "valid": column(lambda r: r.valid, False, bool),
        "legal_count": column(lambda r: r.legal_count),
        "is_decision": column(lambda r: r.decision, False, bool),
        "target_uid": column(lambda r: r.target, -1),
        "target_group": column(lambda r: r.group),
        "claims_sent": column(lambda r: r.sent),
        "claims_received": column(lambda r: r.received),
        "refused": column(lambda r: r.refused),
        "latency_ms": column(lambda r: r.latency),
        "clock_ms": column(lambda r: r.clock),
        "arrival_ms": column(lambda r: r.arrival),
        "cost_tokens": np.asarray([[0] * 4 if r is None else r.cost for r in records], np.int32),
        "result_code": column(lambda r: CODES.index(r.code)),
        "trusted": column(lambda r: r.trusted, False, bool),
        "tainted": column(lambda r: r.tainted, False, bool),
        "end_reason": column(lambda r: r.end),
        "channels": channels,
    }


def info(twin) -> dict:
    done = twin.task.info(twin.answer)
    out = {name: np.asarray(value) for name, value in done.items()}
    out |= {name: np.asarray(value, np.int32) for name, value in twin.count.items()}
    names = ("task", "orchestration", "message", "tool")
    out |= {f"tokens_{name}": np.asarray(value, np.int32) for name, value in zip(names, twin.tokens, strict=True)}
    root = twin.root
    out |= {
        "tokens": np.asarray(sum(twin.tokens), np.int32),
        "wall_s": F(root.clock / 1000),
        "serial_s": F(twin.serial_ms / 1000),
        "critical_steps": F(root.steps / 1000),
        "alive": np.asarray(0 if twin.last else len(twin.lives), np.int32),
        "mail_in_flight": np.asarray(sum(x.mail.letters for x in twin.lives.values() if x.mail), np.int32),
        "beyond_end_s": np.asarray(twin.beyond_s, np.int32),
    }
    return out


def observation(twin, here) -> dict:
    spec, m = twin.spec, twin.num_rows
    out = {
        "self": np.zeros((len(here), len(spec.self_features)), F),
        "claims": np.zeros((len(here), spec.observed_claims, len(spec.claim_features)), F),
        "last_result": np.zeros((len(here), len(spec.result_features)), F),
        "parent_slot": np.full(spec.max_parents, -1, np.int32),
        "roster": np.zeros((spec.max_parents, spec.roster, len(spec.roster_features)), F),
        "roster_uid": np.full((spec.max_parents, spec.roster), -1, np.int32),
        "board": np.zeros((spec.max_parents, m, len(spec.board_features)), F),
    }
    for slot, life in enumerate(here):
        if life is None:
            continue
        gone = life.uid not in twin.lives  # its last view: its children and its place are another's already
        kids, idle, unread, away = ([], [], [], []) if gone else twin.groups(life)
        out["self"][slot] = (
            *(life.role == role for role in range(len(twin.task.roles))),
            life.depth,
            life.clock / 60_000,
            life.turn / 100,
            (life.spent + life.spent_below) / 1000,
            life.brief,
            life.rows_left / m,
            life.cursor / m,
            len(life.known) / m,
            life.load / twin.reading["capacity"],
            len(idle) / 10,
            len(unread) / 10,
            len(away) / 10,
            life.lifted,
            life.handed_out,
            life.returned,
            life.blocked,
            *twin.task.own_features(life),
        )
        for i, entry in enumerate(twin.newest(life)):
            out["claims"][slot, i] = (
                *(entry.row / m, entry.value, entry.confidence, entry.origin == life.uid),
                *twin.task.claim_features(life.known, entry),
            )
        out["last_result"][slot] = life.last_result
        if life.place is not None and not gone:
            place = life.place
            out["parent_slot"][place] = slot
            for i, child in enumerate(kids[: spec.roster]):
                out["roster_uid"][place, i] = child.uid
                out["roster"][place, i] = (
                    child in idle,
                    child in unread,
                    child in away,
                    child.brief,
                    child.handed_rows / m,
                    max(0, life.clock - child.handed_at) / 60_000,
                    child.report.count / m if child.report and child not in away else 0,
                )
            for row in range(m):
                out["board"][place, row] = board_row(twin, life, row)
    return out


def board_row(twin, life, row) -> tuple:
    tallies = twin.task.tallies([e for e in life.known if e.row == row])
    tallies.sort(key=lambda t: (-t.number, t.first))
    more = twin.task.board_features(life.known, row)
    handed = row in twin.handed(life)
    if not tallies:
        return (handed, 0, -1, 0, 0, 0, 0, 0, *more)
    top = tallies[0]
    second = tallies[1].number if len(tallies) > 1 else 0
    return (
        handed,
        len(tallies),
        top.value,
        top.number,
        second,
        top.confidence,
        top.accepts,
        top.rejects,
        *more,
    )
