"""An independent checker of clock order, in plain numpy and Python: it replays recorded episodes and complains.

It rebuilds items (returns and mail with their arrivals) and decisions from events, and takes from the engine only who
could decide (`blocked`, `idle`) and what was shown (rosters, counts of children, `lifted`, `load`). Its own account of
mailboxes, waits, adoptions and clocks follows docs section 5 (time), not the engine's code.

Kinds of fault:
  future      a life was shown, or moved by, something that arrives after its clock
  missed      a decision was taken although an item with an arrival at or before its clock was not shown
  backwards   a clock ran backwards
  clock       a clock moved by something else than its call, its wait, its hand-out
  wait        a wait ended at another clock than its target
  stuck       a life was blocked although nothing could still arrive before its clock or target
  gate        a life decided although a running child was behind its clock
  cause       an effect begins before its cause has ended
  looks       a child still out was told from one at work
  account     counts of children, mail or reading disagree with the replay
Axis letters: T tick, N slot, P parent place, R roster row.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

WAIT, SPAWN, DELEGATE, MESSAGE, RETURN, AGGREGATE, _, DESPAWN, STOP, TOOL = range(10)
TO_PARENT, TO_CHILDREN, TO_PEERS = 1, 2, 3
ONE, HALF, ALL = range(3)
GONE = 1  # end_reason of a despawned life
NEVER = 2**40
STRAGGLE_MS = 30_000  # how much later than the median of its hand-out a straggler comes back


@dataclass
class Record:
    """One episode. Row t of `events` came of the turns decided on row t of everything shown."""

    events: dict[str, np.ndarray]  # [T, N] each, of EVENT_FIELDS
    shown: dict[str, np.ndarray]  # [T, N] each, of SHOWN_FIELDS
    parent_slot: np.ndarray  # [T, P]
    roster: np.ndarray  # [T, P, R, 4]  of ROSTER_FIELDS
    roster_uid: np.ndarray  # [T, P, R]
    totals: dict[str, int]  # of TOTALS, after the last tick
    wait_limit_ms: int
    idle_ms: int


EVENT_FIELDS = (
    *("uid", "parent_uid", "kind", "argument", "valid", "is_decision", "target_uid", "target_group"),
    *("claims_received", "refused", "latency_ms", "clock_ms", "arrival_ms", "end_reason"),
)
SHOWN_FIELDS = ("blocked", "idle", "children_idle", "children_unread", "children_out", "lifted", "load")
ROSTER_FIELDS = ("idle", "unread", "running", "brief", "rows_handed", "claims_offered")
TOTALS = ("mail_sent", "mail_delivered", "mail_undeliverable", "mail_late", "adopted")


@dataclass
class Report:
    """What a check found: faults [(kind, tick, uid, text)] and how often each case came up."""

    faults: list[tuple[str, int, int, str]] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def kinds(self) -> Counter:
        """Faults by kind."""
        return Counter(kind for kind, *_ in self.faults)


@dataclass
class Return:
    """A return as an item: when it was sent (tick) and arrives; `void` if its sender was despawned with it."""

    tick: int
    arrival: int
    parent: int
    handed: int
    void: bool


@dataclass
class Box:
    """A mailbox place in use: arrival of the merged mail, how many messages, how many came late from the side."""

    arrival: int
    count: int


@dataclass
class Waiting:
    """A wait for something: asked when, for what, and which children were out."""

    asked: int
    what: int
    deadline: int
    need: int
    arrivals: list[int]  # of the children out, in the full record


class Life:
    """What the replay keeps of a life."""

    def __init__(self, uid: int, slot: int, first: int):
        self.uid, self.slot, self.first, self.last = uid, slot, first, first
        self.returns: list[Return] = []
        self.adoptions: list[tuple[int, int]] = []  # (first tick with the new parent, nothing arrives before)
        self.handed_out = 0  # delegations to it so far
        self.read = False  # its last return has been read
        self.since = 0
        self.handed_ms = 0
        self.box: Box | None = None
        self.waiting: Waiting | None = None
        self.ready = 0  # clock after the last tick, before waits were released
        self.due: int | None = None  # clock of the next event, as far as the replay can tell
        self.look: tuple | None = None  # as its parent was last shown it, while out
        self.reads_some = False
        self.hears = False  # mail was delivered at the end of the last tick
        self.rings = False  # a wait ended at its deadline at the end of the last tick
        self.lifted = self.load = 0.0

    def arrival(self, tick: int) -> int:
        """When the return of the work in hand arrives, by the full record, for its parent at `tick`."""
        if len(self.returns) <= self.handed_out or self.returns[self.handed_out].void:
            return NEVER
        back = self.returns[self.handed_out]
        return max([back.arrival, *(since for first, since in self.adoptions if back.tick < first <= tick)])

    def is_back(self, tick: int) -> bool:
        """Whether it had returned, in tick order, before `tick`."""
        return len(self.returns) > self.handed_out and self.returns[self.handed_out].tick < tick


class _Replay:
    def __init__(self, record: Record):
        self.record, self.report = record, Report()
        self.ev = {name: values.tolist() for name, values in record.events.items()}
        self.sh = {name: values.tolist() for name, values in record.shown.items()}
        self.parent_slot, self.roster_uid = record.parent_slot.tolist(), record.roster_uid.tolist()
        self.roster = record.roster.tolist()
        uid = record.events["uid"]
        self.num_ticks = int((uid >= 0).any(axis=1).sum())
        self.here = [[(slot, u) for slot, u in enumerate(row) if u >= 0] for row in self.ev["uid"][: self.num_ticks]]
        self.lives: dict[int, Life] = {}

    def fault(self, kind: str, tick: int, uid: int, text: str) -> None:
        self.report.faults.append((kind, tick, uid, text))

    # What the full record holds, whatever was visible when ------------------------------------------------------

    def collect(self) -> None:
        """Lives, their returns and adoptions, and the earliest later arrival of mail per receiver."""
        ev, lives = self.ev, self.lives
        upward: dict[int, list[tuple[int, int]]] = defaultdict(list)
        sideways: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for t, here in enumerate(self.here):
            homes: dict[int, list[int]] = defaultdict(list)
            for slot, uid in here:
                life = lives.get(uid)
                parent = ev["parent_uid"][t][slot]
                homes[parent].append(uid)
                if life is None:
                    life = lives[uid] = Life(uid, slot, t)
                    life.parent = parent
                    self.birth(life, t, slot, parent)
                elif life.slot != slot or life.last != t - 1:
                    self.fault("account", t, uid, "a life moved, or came back")
                if parent != life.parent:
                    self.adopt(life, t, parent)
                life.last = t
            for slot, uid in here:
                life, kind = lives[uid], ev["kind"][t][slot]
                end = ev["clock_ms"][t][slot] + ev["latency_ms"][t][slot]
                if kind == RETURN:
                    void = ev["end_reason"][t][slot] == GONE
                    handed = life.handed_ms
                    life.returns.append(Return(t, ev["arrival_ms"][t][slot], life.parent, handed, void))
                if kind == MESSAGE:
                    group, target = ev["target_group"][t][slot], ev["target_uid"][t][slot]
                    if group == TO_PARENT:
                        upward[life.parent].append((t, max(end, life.since)))
                    elif group == TO_CHILDREN:
                        for child in homes[uid]:
                            sideways[child].append((t, end))
                    elif group == TO_PEERS:
                        for peer in homes[life.parent]:
                            if peer != uid:
                                sideways[peer].append((t, end))
                    else:
                        sideways[target].append((t, end))
        self.upward, self.sideways = self.later(upward), self.later(sideways)
        for life in lives.values():
            life.since = life.born_ms

    def later(self, items: dict[int, list[tuple[int, int]]]) -> dict[int, np.ndarray]:
        """Per receiver [T]: the earliest arrival among items sent at or after each tick."""
        table = {}
        for uid, sent in items.items():
            first = np.full(self.num_ticks + 1, NEVER)
            for tick, arrival in sent:
                first[tick] = min(first[tick], arrival)
            table[uid] = np.minimum.accumulate(first[::-1])[::-1].tolist()
        return table

    def birth(self, life: Life, t: int, slot: int, parent: int) -> None:
        """A newborn begins at the end of its parent's spawn."""
        life.born_ms = self.ev["clock_ms"][t][slot]
        life.since = life.handed_ms = life.born_ms
        if parent < 0:
            return
        at = self.lives[parent].slot
        if t == 0 or self.ev["kind"][t - 1][at] != SPAWN or self.ev["uid"][t - 1][at] != parent:
            self.fault("cause", t, life.uid, "born without a spawn")
            return
        end = self.ev["clock_ms"][t - 1][at] + self.ev["latency_ms"][t - 1][at]
        if life.born_ms < end:
            self.fault("cause", t, life.uid, f"acts at {life.born_ms}, born at {end}")
        elif life.born_ms > end:
            self.fault("clock", t, life.uid, f"born at {end}, begins at {life.born_ms}")
        life.ready = life.born_ms
        self.report.counts["births"] += 1

    def adopt(self, life: Life, t: int, parent: int) -> None:
        """The nearest live ancestor takes over: nothing arrives before the leave took effect."""
        left, ev = self.lives[life.parent], self.ev
        heir = self.lives.get(parent)
        if heir is None or ev["end_reason"][t - 1][left.slot] != GONE or left.parent not in self.lives:
            self.fault("account", t, life.uid, "a parent changed without a despawn")
            return
        by = self.lives[left.parent].slot
        end = ev["clock_ms"][t - 1][by] + ev["latency_ms"][t - 1][by]
        life.since = max(life.since, end, self.after(t - 1, left.slot))
        life.adoptions.append((t, life.since))
        life.parent = parent
        self.report.counts["adoptions"] += 1

    def after(self, t: int, slot: int) -> int:
        """Clock of a life after its turn in tick t, before waits are released."""
        ev = self.ev
        clock = ev["clock_ms"][t][slot] + ev["latency_ms"][t][slot]
        free = not self.sh["blocked"][t][slot] and not self.sh["idle"][t][slot]
        alone = self.sh["children_out"][t][slot] == 0
        return clock + (self.record.idle_ms if free and alone and ev["kind"][t][slot] == WAIT else 0)

    # Replay in tick order ---------------------------------------------------------------------------------------

    def run(self) -> Report:
        self.collect()
        for life in self.lives.values():  # parents and links once more, in tick order
            life.adopted = dict(life.adoptions)
        for t, here in enumerate(self.here):
            self.tick(t, here)
        totals, counts = self.record.totals, self.report.counts
        for name in TOTALS:
            mine = counts["adoptions"] if name == "adopted" else counts[name]
            if totals[name] != mine:
                self.fault("account", self.num_ticks, -1, f"{name}: {totals[name]} told, {mine} replayed")
        return self.report

    def tick(self, t: int, here: list[tuple[int, int]]) -> None:
        ev, sh, lives = self.ev, self.sh, self.lives
        below: dict[int, list[Life]] = defaultdict(list)
        for slot, uid in here:
            life = lives[uid]
            life.parent = ev["parent_uid"][t][slot]
            life.since = max(life.since, life.adopted.get(t, 0))
            below[life.parent].append(life)
        place = {slot: p for p, slot in enumerate(self.parent_slot[t]) if slot >= 0}
        for slot, uid in here:
            self.look(t, slot, lives[uid], below[uid], place)
        for slot, uid in here:
            self.decide(t, slot, lives[uid], below[uid])
        if t + 1 < len(self.ev["uid"]):  # what the record's last turns led to is not on record
            posted = self.act(t, here, below)
            self.deliver(t, here, posted)
        for slot, uid in here:
            lives[uid].lifted, lives[uid].load = sh["lifted"][t][slot], sh["load"][t][slot]

    def look(self, t: int, slot: int, life: Life, children: list[Life], place: dict[int, int]) -> None:
        """Clocks, and what is shown against what has arrived."""
        ev, sh = self.ev, self.sh
        clock = ev["clock_ms"][t][slot]
        if t > life.first:
            before = ev["clock_ms"][t - 1][slot]
            if clock < before:
                self.fault("backwards", t, life.uid, f"clock {clock} after {before}")
            if life.due is not None and clock != life.due:
                self.fault("clock", t, life.uid, f"clock {clock}, should be {life.due}")
        if bool(sh["idle"][t][slot]) != life.is_back(t):
            self.fault("account", t, life.uid, "idle without a return, or at work after one")
        # Mail and deadlines, as they show.
        if t > life.first:
            rose = sh["lifted"][t][slot] > life.lifted
            if rose and not life.hears and not life.rings:
                self.fault("future", t, life.uid, "`lifted` without mail or deadline")
            if (life.hears or life.rings) and not sh["lifted"][t][slot]:
                self.fault("missed", t, life.uid, "mail has arrived or a deadline was met, and does not show")
            if slot in place and ev["kind"][t - 1][slot] != AGGREGATE:
                heavier = sh["load"][t][slot] > life.load
                if heavier and not life.hears:
                    self.fault("future", t, life.uid, "reading load without mail")
                if life.hears and not heavier:
                    self.fault("missed", t, life.uid, "mail has arrived without reading load")
        life.seen = set()
        if not children:
            if slot in place and life.uid != 0:
                self.fault("account", t, life.uid, "a roster without children")
            if sh["children_idle"][t][slot] or sh["children_unread"][t][slot] or sh["children_out"][t][slot]:
                self.fault("account", t, life.uid, "children counted where there are none")
            return
        if slot not in place:
            self.fault("account", t, life.uid, "a parent without a roster")
            return
        p = place[slot]
        rows = {uid: row for uid, row in zip(self.roster_uid[t][p], self.roster[t][p], strict=True) if uid >= 0}
        if set(rows) != {child.uid for child in children}:
            self.fault("account", t, life.uid, "the roster lists other children")
            return
        shown = Counter()
        for child in children:
            idle, unread, running, brief, handed, offered = rows[child.uid]
            arrival = child.arrival(t)
            if idle or unread:
                shown["children_idle" if idle else "children_unread"] += 1
                life.seen.add(child.uid)
                if not child.is_back(t) or arrival > clock:
                    self.fault("future", t, life.uid, f"sees the return of {child.uid} at {clock}, arrival {arrival}")
                elif bool(idle) != child.read:
                    self.fault("account", t, life.uid, f"child {child.uid} is read or not, and shown otherwise")
                continue
            shown["children_out"] += 1
            look = (child.handed_out, brief, handed)
            changed = child.look is not None and child.look[0] == look[0] and child.look != look
            if offered or not running or changed:
                self.fault("looks", t, life.uid, f"child {child.uid} is out and told apart")
            child.look = look
        for name in ("children_idle", "children_unread", "children_out"):
            if sh[name][t][slot] != shown[name]:
                self.fault("account", t, life.uid, f"{name} {sh[name][t][slot]}, roster {shown[name]}")

    def decide(self, t: int, slot: int, life: Life, children: list[Life]) -> None:
        """The gate, items missed, ends of waits."""
        ev, sh, counts = self.ev, self.sh, self.report.counts
        clock = ev["clock_ms"][t][slot]
        running = [ev["clock_ms"][t][child.slot] for child in children if not child.is_back(t)]
        slowest = min(running, default=NEVER)
        # The gate looks at clocks before this tick's waits were released: one level of parents a tick.
        ready = min((child.ready for child in children if not child.is_back(t)), default=NEVER)
        if sh["idle"][t][slot]:
            return
        if sh["blocked"][t][slot]:
            counts["blocked ticks"] += 1
            if life.waiting is None:
                counts["blocked by the gate"] += 1
                counts["blocked a tick longer, below a wait that ended"] += ready < clock <= slowest
                if ready >= clock:
                    self.fault("stuck", t, life.uid, f"blocked at {clock}, slowest child at {slowest}")
            elif life.waiting.what != HALF and ready >= self.target(life)[0]:
                self.fault("stuck", t, life.uid, f"waits for {self.target(life)[0]}, slowest child at {slowest}")
            return
        life.waiting = None
        if slowest < clock:
            self.fault("gate", t, life.uid, f"acts at {clock}, a child is at {slowest}")
        if not ev["is_decision"][t][slot]:
            return
        counts["decisions"] += 1
        for child in children:
            if child.uid not in life.seen and child.arrival(t) <= clock:
                self.fault("missed", t, life.uid, f"at {clock} the return of {child.uid}, arrival {child.arrival(t)}")
        sent = self.upward.get(life.uid)
        if sent is not None and sent[t] <= clock:
            self.fault("missed", t, life.uid, f"at {clock} mail from below, arrival {sent[t]}, is not sent yet")
        across = self.sideways.get(life.uid)
        if across is not None and across[t] <= clock:
            counts["exception: decided before mail from above or beside was sent"] += 1

    def target(self, life: Life) -> tuple[int, bool]:
        """(clock at which a wait ends, whether that is its deadline), by the full record and the mailbox."""
        wait = life.waiting
        arrivals = sorted(wait.arrivals)
        if wait.what == ONE:
            mail = NEVER if life.box is None else max(life.box.arrival, wait.asked)
            awaited = min(arrivals[0], mail)
        elif wait.what == HALF:
            awaited = arrivals[wait.need - 1]
        else:
            awaited = arrivals[-1]
        return min(awaited, wait.deadline), wait.deadline < awaited

    def act(self, t: int, here: list[tuple[int, int]], below: dict[int, list[Life]]) -> dict[int, list]:
        """Effects of a tick's turns. Returns messages per receiver: (arrival, comes from above or beside)."""
        ev, sh, lives, counts = self.ev, self.sh, self.lives, self.report.counts
        posted: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        handed: list[tuple[Life, int]] = []
        for slot, uid in here:
            life, kind = lives[uid], ev["kind"][t][slot]
            clock, latency = ev["clock_ms"][t][slot], ev["latency_ms"][t][slot]
            acts = not sh["blocked"][t][slot] and not sh["idle"][t][slot]
            leaves = ev["end_reason"][t][slot] == GONE
            end = clock + latency
            life.due = self.after(t, slot)
            if kind != WAIT and (not acts or latency < 1):
                self.fault("cause", t, uid, "a call of a life that cannot act, or without duration")
            arrival = ev["arrival_ms"][t][slot]
            if kind == RETURN:
                fact = max([end, life.since, *([life.adopted[t + 1]] if t + 1 in life.adopted else [])])
                if arrival != fact and not leaves:
                    self.fault("cause" if arrival < fact else "clock", t, uid, f"return at {arrival}, should be {fact}")
                life.read = False
                counts["returns"] += not leaves
            elif arrival < end:
                self.fault("cause", t, uid, f"effect at {arrival}, end {end}")
            if kind == WAIT and acts:
                self.ask(t, slot, life, below[uid])
            elif kind == MESSAGE:
                self.post(t, slot, life, end, below, posted)
            elif kind == AGGREGATE:
                self.reads(t, slot, life, below[uid])
            elif kind == DELEGATE and not leaves:
                target = ev["target_uid"][t][slot]
                some = [c for c in below[uid] if c.uid in life.seen and c.read and target in (-1, c.uid)]
                if target >= 0 and not some:
                    self.fault("account", t, uid, f"delegates to {target}, which is not idle")
                handed += [(child, end) for child in some if ev["end_reason"][t][child.slot] != GONE]
            elif kind == DESPAWN and not leaves:
                late = self.after(t, lives[ev["target_uid"][t][slot]].slot) - end
                counts["despawns"] += 1
                counts["exception: despawn later than its call"] += late > 0
            elif kind == SPAWN and not leaves:
                counts["shared limit: births refused"] += ev["refused"][t][slot] > 0
            if kind != AGGREGATE:
                life.reads_some = False
        for child, end in handed:
            start = max(child.due, end)
            counts["delegations"] += 1
            counts["exception: delegation later than its call"] += start > end
            child.due = child.since = child.handed_ms = start
            child.handed_out += 1
        return posted

    def ask(self, t: int, slot: int, life: Life, children: list[Life]) -> None:
        """A chosen wait: for the children out, or for nothing."""
        counts, clock = self.report.counts, self.ev["clock_ms"][t][slot]
        out = [child for child in children if child.uid not in life.seen]
        if not out:
            return
        what = self.ev["argument"][t][slot]
        arrivals = [child.arrival(t) for child in out]
        life.waiting = Waiting(clock, what, clock + self.record.wait_limit_ms, (len(out) + 1) // 2, arrivals)
        counts[f"waits for {('one', 'half', 'all')[what]}"] += 1

    def reads(self, t: int, slot: int, life: Life, children: list[Life]) -> None:
        """An aggregation reads what has arrived."""
        counts = self.report.counts
        fresh = [child for child in children if child.uid in life.seen and not child.read]
        out = len(children) - len(life.seen)
        counts["aggregations"] += 1
        counts["early readings"] += bool(fresh) and out > 0
        for child in fresh:
            child.read = True
        life.reads_some = bool(fresh)
        counts["reads"] += len(fresh)

    def post(self, t, slot, life, end, below, posted) -> None:
        """Messages per receiver."""
        counts = self.report.counts
        group, target = self.ev["target_group"][t][slot], self.ev["target_uid"][t][slot]
        if group == TO_PARENT:
            posted[life.parent].append((max(end, life.since), False))
            counts["mail_sent"] += 1
            counts["mail up"] += 1
            return
        if group == TO_CHILDREN:
            to = [child.uid for child in below[life.uid]]
        elif group == TO_PEERS:
            to = [peer.uid for peer in below[life.parent] if peer is not life]
        else:
            to = [target]
        counts["mail_sent"] += len(to)
        counts["mail beside" if group == TO_PEERS else "mail down"] += len(to)
        for uid in to:
            posted[uid].append((end, True))

    def deliver(self, t: int, here: list[tuple[int, int]], posted: dict[int, list]) -> None:
        """Mailboxes and releases at the end of a tick, seen from the next one."""
        ev, sh, lives, counts = self.ev, self.sh, self.lives, self.report.counts
        goes_on = t + 1 < self.num_ticks
        after = {uid: slot for slot, uid in self.here[t + 1]} if goes_on else {}
        for slot, uid in here:
            life = lives[uid]
            leaves = ev["end_reason"][t][slot] == GONE
            mails = posted.get(uid, [])
            if mails and (life.box is not None or leaves):
                counts["mail_undeliverable"] += len(mails)
                counts["shared limit: mailbox in use"] += not leaves
            elif mails:
                up = [arrival for arrival, across in mails if not across]
                across = [arrival for arrival, beside in mails if beside]
                arrival = max(up, default=-1)
                if across:
                    ready = self.after(t, slot)
                    late = ready - max(across)
                    arrival = max(arrival, ready, max(across))
                    counts["mail_late"] += len(across) if late > 0 else 0
                    counts["exception: mail from above or beside came late"] += late > 0
                counts["exception: mail merged, latest arrival counts"] += len({a for a, _ in mails}) > 1
                life.box = Box(arrival, len(mails))
            if leaves and life.box is not None:
                counts["mail_undeliverable"] += life.box.count
                life.box = None
            life.hears = life.rings = False
            life.ready = life.due
            if uid not in after:
                if not leaves and goes_on:
                    self.fault("account", t, uid, "a life is gone without an end")
                continue
            clock, idle = ev["clock_ms"][t + 1][slot], sh["idle"][t + 1][slot]
            if life.waiting is not None:
                target, late = self.target(life)
                if not sh["blocked"][t + 1][slot]:
                    what = ("one", "half", "all")[life.waiting.what]
                    if clock != target:
                        self.fault("wait", t + 1, uid, f"wait for {what} ends at {clock}, should at {target}")
                    life.rings = late and clock == target
                    counts["deadlines met"] += life.rings
                    counts[f"waits for {what} ended"] += 1
                    counts["waits ended by mail"] += life.box is not None and life.box.arrival == target < min(
                        life.waiting.arrivals
                    )
                elif clock > target:
                    self.fault("wait", t + 1, uid, f"waits at {clock}, should have ended at {target}")
                life.due = clock
            if life.box is not None and not idle and life.box.arrival <= clock:
                counts["mail_delivered"] += life.box.count
                life.hears, life.box = True, None
            if ev["claims_received"][t][slot] and not life.hears and not life.reads_some:
                self.fault("future", t, uid, "receives claims without mail")


def check(record: Record) -> Report:
    """Replay one episode."""
    replay = _Replay(record)
    report = replay.run()
    _stragglers(replay)
    return report


def _stragglers(replay: _Replay) -> None:
    """Count children whose return comes much later than the median of those handed work at the same moment."""
    groups = defaultdict(list)
    for life in replay.lives.values():
        if life.returns:
            groups[life.parent, life.born_ms].append(life.returns[0].arrival)
    for arrivals in groups.values():
        if len(arrivals) >= 3:
            replay.report.counts["stragglers"] += int((np.asarray(arrivals) > np.median(arrivals) + STRAGGLE_MS).sum())
