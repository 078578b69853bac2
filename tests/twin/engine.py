"""The engine's moves in ordinary Python: lives, windows, mail, returns, clocks, ends, rewards, what is seen.

Nothing here is shared with the engine but the grammar of turns, the numbers of `Params` and the hash of luck. A tick is
`Twin.step`, which reads as the list of moves of the model's section 3.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from twin import luck
from twin.datascience import DataScience
from twin.math import Math
from twin.search import LEAD, Search

TASKS: dict[str, Any] = {"Search-v0": Search, "Math-v0": Math, "DataScience-v0": DataScience}

F = np.float32
ZERO = F(0)
CHANNELS = (
    *("team", "individual", "role", "process", "tool", "debate"),
    *(f"orchestration_{name}" for name in ("parallel", "finish", "speedup", "split", "aggregation")),
)
TASK, ORCHESTRATION, MESSAGE, TOOL = range(4)  # purposes of tokens
KINDS = {"wait": 0, "spawn": 1, "delegate": 2, "message": 3, "return": 4, "aggregate": 5, "despawn": 7, "stop": 8}
DECISIONS = {"wait": 3, "spawn": 1, "delegate": 2, "message": 3, "return": 3, "aggregate": 4, "despawn": 1, "stop": 5}
CODES = ["NOTHING", "DONE", "IN_PROGRESS", "FOUND", "EMPTY", "FAULT", "REFUSED", "ILLEGAL", "ACCEPTED", "REJECTED"]
GROUPS = {"parent": 1, "children": 2, "peers": 3}
STOPPED, BUDGET, HORIZON = 1, 2, 3
COUNTS = (
    *("turns", "decisions", "births", "returned_lives", "deaths", "adopted", "illegal", "empty_selections"),
    *("refused_births", "refused_places", "refused_rows", "refused_claims", "lost_returns"),
    *("mail_sent", "mail_delivered", "mail_undeliverable", "mail_late", "mail_late_ms"),
)
DESPAWNED, WITH_EPISODE = 1, 2


@dataclass
class Mail:
    """What is on its way to one life, or what its last return offers."""

    sender: int
    arrival: int
    entries: set
    load: np.float32
    steps: int = 0
    spent: int = 0
    count: int = 0  # of entries paid for, a claim and its garbled form counted apart
    letters: int = 0
    tokens: np.float32 = ZERO  # read
    extra: np.float32 = ZERO  # load of its level of detail


@dataclass
class Waiting:
    """A wait that has not ended: how many arrivals it still lacks, and its deadline."""

    kind: str
    need: int
    asked: int
    deadline: int


@dataclass
class Life:
    """One agent."""

    uid: int
    slot: int
    role: int
    parent: int
    depth: int
    lineage: tuple[int, int]
    turn: int = 0
    clock: int = 0
    spent: int = 0
    spent_below: int = 0  # of its children, as read
    spent_told: int = 0  # what its parent has read of its spending
    steps: int = 0
    brief: int = 2
    rows: list = field(default_factory=list)  # the window
    cursor: int = 0
    skill: Any = None
    known: list = field(default_factory=list)
    known_before: int = 0  # how many entries were known at the start of the tick
    sent: set = field(default_factory=set)
    load: np.float32 = ZERO
    returned: bool = False
    unread: bool = False
    report: Mail | None = None
    mail: Mail | None = None
    waiting: Waiting | None = None
    lifted: bool = False
    handed_out: bool = False
    shift: int = 0
    handed_rows: int = 0  # as its parent knows it
    handed_at: int = 0
    place: int | None = None
    not_before: int = 0  # what an adopted life sends up arrives no earlier
    last_result: tuple[int, int, int] = (-1, -1, -1)
    blocked: bool = False

    @property
    def rows_left(self) -> int:
        return len(self.rows) - self.cursor

    def learn(self, entries) -> list:
        """Add entries; what is learnt in one tick is in the order of the log."""
        new = [e for e in entries if e not in self.known]
        self.known[self.known_before :] = sorted([*self.known[self.known_before :], *new], key=lambda e: (e.row, e.k))
        return new


@dataclass
class Record:
    """What a life did in a tick."""

    life: Life
    tool: str = "wait"
    args: dict = field(default_factory=dict)
    tokens: list = field(default_factory=list)
    acting: bool = False
    valid: bool = True
    legal_count: int = 1
    decision: bool = False
    clock: int = 0
    latency: int = 0
    arrival: int = 0
    cost: list = field(default_factory=lambda: [0, 0, 0, 0])
    code: str = "NOTHING"
    told: str = ""  # what the caller is told, if not the code
    value: int = -1
    target: int = -1
    group: int = 0
    sent: int = 0
    paid: int = 0  # entries sent that cost tokens
    received: int = 0
    refused: int = 0
    trusted: bool = True
    tainted: bool = False
    kept: set = field(default_factory=set)  # entries read that survive
    end: int = 0
    lost: bool = False  # a return that never arrives
    parent: int = -1
    channels: dict = field(default_factory=lambda: dict.fromkeys(CHANNELS, F(0)))
    terminated: bool = False
    truncated: bool = False
    listens: bool = False  # a wait for mail on its way

    @property
    def finish(self) -> int:
        return self.clock + self.latency


class Twin:
    """One episode."""

    def __init__(self, env, key, luck_key):
        self.options, self.topology, self.tools = env.options, env.rules.topology, env.harness.tools
        self.names = [tool.name for tool in self.tools]
        self.capacity = self.options["capacity"]
        self.max_lives = dict(env.spec.max_lives)
        self.service = {name: np.asarray(value) for name, value in vars(env.params.service).items()}
        self.charges = {name: np.asarray(value) for name, value in vars(env.params.charges).items()}
        self.reading = {name: np.asarray(value) for name, value in vars(env.params.reading).items()}
        self.weights = {name: F(value) for name, value in env.params.weights.items()}
        self.price_token, self.price_second = F(env.params.price_token), F(env.params.price_second)
        self.spec = env.spec
        self.luck_key = luck_key
        self.task = TASKS[env.id](env, key, luck_key)
        self.by_value = env.id != "Search-v0"  # the rules of ddpomdp.byvalue
        self.num_rows = self.options["num_subtasks"]
        self.log = [[] for _ in range(self.num_rows)]
        self.numbers = 0
        if hasattr(self.task, "notes"):  # they stand in the log from the start
            for note in self.task.notes:
                self.record(note)
        self.queue = self.task.passes * self.num_rows
        self.answer = [set() for _ in range(self.num_rows)]
        rows = list(range(self.num_rows)) * self.task.passes
        root = Life(0, 0, LEAD, -1, 0, luck.ROOT, rows=rows, place=0, skill=self.task.skill())
        self.root = root
        self.lives = {0: root}  # living, by uid
        self.born = dict.fromkeys(self.task.roles, 0)
        self.born["lead"] = 1
        self.next_uid = 1
        self.tick = 0
        self.last = False
        self.stop_reason = 0
        self.ended = {}
        self.late = {}
        self.count = dict.fromkeys(COUNTS, 0)
        if self.topology.crew:  # one child of each role from the start, idle
            for role in range(1, len(self.task.roles)):
                child = Life(role, role, role, 0, 1, luck.child(luck.ROOT, 0, role - 1), skill=self.task.skill())
                child.returned, child.brief, child.report = True, 0, Mail(role, 0, set(), ZERO)
                self.lives[role] = child
                self.born[self.task.roles[role]] += 1
                self.next_uid += 1
                self.count["births"] += 1
        self.tokens = [0, 0, 0, 0]
        self.serial_ms = 0
        self.beyond_s = 0
        self.records = {}
        self.returned = set()  # uids that returned at least once
        self.assigned = [0] * self.num_rows  # how often a row was handed to a worker
        self.leaders = [None] * self.num_rows  # entries whose values were reported last
        self.told = set()  # entries offered to the root
        self.legal = {}
        self.look()

    # who is who -------------------------------------------------------------------------------------------------

    def order(self, lives):
        return sorted(lives, key=lambda life: (life.parent, life.uid))

    def children(self, life):
        return [c for c in self.lives.values() if c.parent == life.uid]

    def seen_back(self, child, parent):
        """A return that has arrived at the parent, or was read."""
        return child.returned and child.report.arrival <= parent.clock

    def roster(self, life):
        """Children as their parent sees them: idle and read, unread, running; by uid within each."""

        def rank(child):
            if not self.seen_back(child, life):
                return 2
            return 1 if child.unread else 0

        return sorted(self.children(life), key=lambda c: (rank(c), c.uid))

    def groups(self, life):
        kids = self.roster(life)
        back = [c for c in kids if self.seen_back(c, life)]
        idle = [c for c in back if not c.unread]
        unread = [c for c in back if c.unread]
        out = [c for c in kids if not self.seen_back(c, life)]
        return kids, idle, unread, out

    # a tick -----------------------------------------------------------------------------------------------------

    def step(self, turns):
        if self.last:
            self.records = {}
            return
        self.ended = {}
        self.own_clock = {}  # by uid: clocks before work was handed over
        self.handed_now = {}  # by uid: entries taken over with work in this tick
        self.read_work = {}  # by uid: tokens of claims taken over
        self.read_now = {}  # by uid: tokens of returns read
        self.heard = {}  # by uid: entries newly known by mail, reading or with work
        self.check(turns)
        self.grant()
        self.bill()
        self.effects()
        self.work()
        self.ends()
        self.hand_over()
        self.clocks()
        self.remove()
        self.arrivals()
        self.release()
        for life in self.lives.values():
            self.take_mail(life)
        self.settle()
        self.tick += 1
        self.look()
        self.reward()

    # check ------------------------------------------------------------------------------------------------------

    def bounds(self, life):
        return self.legal[life.uid]["bounds"]

    def is_legal(self, life, tokens):
        """Whether a turn is one of the life's legal calls, unused positions 0."""
        if not 0 <= tokens[0] < len(self.tools):
            return False
        tool, legal = self.tools[tokens[0]], self.legal[life.uid]
        if tool.name not in legal["tools"]:
            return False
        for i, token in enumerate(tokens[1:]):
            if i >= len(tool.arguments):
                if token != 0:
                    return False
                continue
            argument = tool.arguments[i]
            if argument.bits:
                if token not in legal["whom"]:
                    return False
            elif not 0 <= token < legal["bounds"].get(argument.bound, len(argument.values)):
                return False
        return True

    def count_legal(self, life):
        legal, total = self.legal[life.uid], 0
        for tool in self.tools:
            if tool.name in legal["tools"]:
                calls = 1
                for argument in tool.arguments:
                    size = legal["bounds"].get(argument.bound, len(argument.values))
                    calls *= len(legal["whom"]) if argument.bits else size
                total += calls
        return total

    def read(self, tokens):
        """A call's tool and arguments by name; what the grammar leaves out has its only value."""
        tool = self.tools[tokens[0]]
        args = {
            argument.name: argument.values[token] for argument, token in zip(tool.arguments, tokens[1:], strict=False)
        }
        only = {
            "spawn": {
                "role": self.options_spawnable()[:1],
                "count": self.options["counts"],
                "chunk": self.options.get("chunks", (1,)),
                "brief": ("short",),
            },
            "delegate": {
                "chunk": self.options.get("delegate_chunks", getattr(self.task, "chunks", ("even",))),
                "brief": self.options.get("delegate_briefs", ("short",)),
            },
            "solve": {"effort": ("high",)},
            "aggregate": {"rule": ("verdict" if self.topology.checked else "majority",)},
        }.get(tool.name, {})
        return tool.name, {**{name: values[0] for name, values in only.items() if values}, **args}

    def options_spawnable(self):
        if not self.topology.spawn:
            return ()
        workers = self.task.spawnable[:1] if self.topology.alike else self.task.spawnable
        return workers + (("lead",) if self.topology.sub_leads else ())

    def check(self, turns):
        self.records = {}
        for uid, life in self.lives.items():
            life.known_before = len(life.known)
            tokens = [int(x) for x in turns[life.slot]]
            r = Record(life, tokens=tokens, clock=life.clock, arrival=life.clock, parent=life.parent)
            r.acting = not life.returned and not life.blocked
            r.valid = self.is_legal(life, tokens)
            r.legal_count = self.count_legal(life)
            r.decision = r.acting and r.legal_count > 1
            if r.valid and r.acting:
                r.tool, r.args = self.read(tokens)
                r.code = "DONE"
            if not r.valid:
                r.tool, r.args, r.code = "wait", {"for": "one"}, "ILLEGAL" if r.acting else "NOTHING"
                r.channels["tool"] = F(-0.01)
                self.count["illegal"] += 1
            self.records[uid] = r
            self.count["turns"] += r.acting and r.tool != "wait"
            self.count["decisions"] += r.decision
        self.doing = self.order(r.life for r in self.records.values() if r.acting)

    def doing_tool(self, *names):
        for life in self.doing:
            record = self.records[life.uid]
            if record.tool in names:
                yield life, record

    # grant: who gets which slots, places and rows --------------------------------------------------------------------

    def grant(self):
        self.leaving = set()  # uids despawned in this tick
        for life, r in self.doing_tool("despawn"):
            target = self.roster(life)[int(r.args["who"][4:])]
            r.target, r.code = target.uid, "DONE"
            self.leaving.add(target.uid)
        used = {life.slot for life in self.lives.values()}
        self.free_slots = [slot for slot in range(self.capacity) if slot not in used]
        places = {life.place for life in self.lives.values()}
        self.free_places = [p for p in range(self.spec.max_parents) if p not in places]
        left = {role: self.max_lives[role] - self.born[role] for role in self.task.roles}
        self.births, self.handouts = {}, {}
        for life, r in self.doing_tool("spawn"):
            count, role = r.args["count"], r.args["role"]
            fits = min(count, len(self.free_slots), left[role])
            placeless = life.place is None and not self.free_places and life.uid not in self.leaving
            if life.uid in self.leaving or placeless:
                fits = 0
            elif life.place is None:
                life.place = self.free_places.pop(0)
            slots = [self.free_slots.pop(0) for _ in range(fits)]
            left[role] -= fits
            r.refused = count - fits
            self.count["refused_places"] += placeless
            self.count["refused_births"] += count - fits
            r.code = "DONE" if fits else "REFUSED"
            self.count["empty_selections"] += fits > 0 and not life.rows_left
            size = self.chunk(r.args["chunk"], life.rows_left, count)
            windows = self.cut(life.rows[life.cursor :], size, fits)
            self.births[life.uid] = (role, slots, windows, r.args["brief"])
        for life, r in self.doing_tool("delegate"):
            self.delegate(life, r)

    def chunk(self, value, rows, count):
        return -(-rows // count) if value == "even" else value

    def cut(self, rows, size, count):
        return [rows[i * size : (i + 1) * size] for i in range(count)]

    def delegate(self, life, r):
        _, idle, _, _ = self.groups(life)
        to = r.args["to"]
        idle = idle if to == "all_idle" else [idle[int(to[4:])]]
        if to != "all_idle":
            r.target = idle[0].uid
        idle = [] if life.uid in self.leaving else idle
        kind, count = r.args["rows"], len(idle)
        appended = 0
        again = kind == "again" and not self.by_value
        if kind == "next":
            source = life.rows[life.cursor :]
            if self.by_value:  # to the end of a pass
                source = source[: self.num_rows - life.cursor % self.num_rows]
        elif again:
            source = life.rows
        else:
            role = idle[0].role if idle else LEAD
            source = [m for m in sorted(self.handed(life)) if self.task.pick(kind, role, life.known, m)]
        self.count["empty_selections"] += count > 0 and not source
        size = self.chunk(r.args["chunk"], len(source), max(count, 1))
        if again:  # the chunks of the whole window, from the next one on, round and round
            chunks = self.cut(source, size, -(-len(source) // size)) if source else [[]]
            life.shift = (life.shift + 1) % len(chunks)
            windows = [chunks[(life.shift + i) % len(chunks)] for i in range(count)]
        else:
            windows = self.cut(source, size, count)
        if kind != "next" and not again:
            places = 4 if self.task.passes == 1 else self.task.passes + 4
            room = places * self.num_rows - self.queue
            taken = []
            for window in windows:
                keep = window[: max(room - appended, 0)]
                r.refused += len(window) - len(keep)
                appended += len(keep)
                taken.append(keep)
            windows = taken
            self.queue += appended
            self.count["refused_rows"] += r.refused
        self.handouts[life.uid] = (kind, idle, windows, r.args["brief"])

    def handed(self, life):
        """Rows that a parent has handed out or done itself, as far as its window tells."""
        return set(life.rows[: life.cursor])

    # bill -------------------------------------------------------------------------------------------------------

    def bill(self):
        self.use_tools()
        for life in self.doing:
            r = self.records[life.uid]
            c, orchestration = self.charges, 0
            level = ("short", "standard", "detailed").index(r.args.get("brief", "short"))
            if r.tool in ("spawn", "delegate"):
                reached = len((self.births if r.tool == "spawn" else self.handouts)[life.uid][1])
                orchestration = int(c["hand_tokens"]) + reached * int(c["brief_tokens"][level])
                for uid, role, window in self.reached(life, r):
                    given = self.task.given(life.known, role, level, window, uid)
                    orchestration += self.task.price(given, level)
                if reached and not life.handed_out:
                    orchestration += int(c["plan_tokens"])
                    life.steps += int(c["plan_steps"])
                    life.handed_out = True
                life.steps += reached * int(c["child_steps"])
                life.lifted = False
                r.cost[ORCHESTRATION] = orchestration
            elif r.tool in ("message", "return"):
                self.choose(life, r)
                r.cost[MESSAGE] = int(c["send_tokens"]) + r.paid * int(c["claim_tokens"][r.full])
                if c["detail_tokens"].shape:
                    r.cost[MESSAGE] += int(c["detail_tokens"][r.full])
            elif r.tool == "aggregate":
                if life.place is None:
                    rows, r.code = 0, "REFUSED"
                    self.count["refused_places"] += 1
                else:
                    self.read_returns(life, r)
                    rows = len({e.row for e in [*life.known, *r.kept] if e.is_claim})
                life.steps += int(c["aggregate_steps"])
                r.cost[ORCHESTRATION] = int(c["aggregate_tokens"]) + rows * int(c["row_tokens"])
            elif r.tool == "despawn":
                r.cost[ORCHESTRATION] = int(c["despawn_tokens"])
            outside = False
            if r.tool in self.task.tools:
                out, outside = self.outcomes[life.uid], not self.by_value
                r.cost[TOOL] = out.tool_tokens if self.by_value else int(self.task.p["call_tokens"])
                r.cost[TASK] = out.tokens
                outside = outside or out.outside
                life.steps += 1000
            if r.tool != "wait":
                r.latency = self.latency(life, sum(r.cost), outside)
                r.latency += out.tool_ms if r.tool in self.task.tools else 0
            life.spent += sum(r.cost)
            for purpose in range(4):
                self.tokens[purpose] += r.cost[purpose]

    def reached(self, life, r):
        """(uid, role, window) of the children that a spawn or delegation hands work to."""
        if r.tool == "spawn":
            role, slots, windows, _ = self.births[life.uid]
            return [(-1, self.task.roles.index(role), window) for window, _ in zip(windows, slots, strict=True)]
        _, idle, windows, _ = self.handouts[life.uid]
        return [(child.uid, child.role, window) for child, window in zip(idle, windows, strict=True)]

    def latency(self, life, tokens, tool):
        s = self.service
        w0, w1 = luck.draw(self.luck_key, life.lineage, life.turn, luck.SERVICE)
        total = int(s["ttft_ms"][w0 & 1023]) + tokens * int(s["token_us"]) // 1000
        if tool:
            total += int(s["tool_ms"][w1 & 1023])
        if luck.share(w0, 10, 22) < s["stall"]:
            total += int(s["stall_low_ms"]) + int(luck.share(w1, 10, 22) * np.float32(s["stall_span_ms"]))
        return max(total, 1)

    def choose(self, life, r):
        """Entries a message or return shares, as the receiver gets them."""
        details = next(a.values for a in self.tools[self.names.index(r.tool)].arguments if a.name == "detail")
        which, r.full = r.args["claims"], details.index(r.args["detail"])
        known = list(life.known)
        if which == "new":
            known = [e for e in known if e not in life.sent]
        elif which == "disputed":
            several = {
                m for m in range(self.num_rows) if len({e.value for e in known if e.row == m and e.is_claim}) > 1
            }
            known = [e for e in known if e.is_claim and e.row in several]
        elif which == "best":
            known = self.best(known)
        r.originals = set(known)
        r.chosen = {e if r.full or e.garbled is None else e.garbled for e in known}
        r.sent = r.paid = len(r.originals)
        if self.by_value:  # verdicts are part of full solutions, and no part of summaries
            r.chosen = {e for e in known if e.is_claim or (r.full >= e.level if e.level else r.full)}
            r.sent, r.paid = len(r.chosen), sum(e.is_claim for e in known)

    def best(self, known):
        """The most confident claim of each row, the earliest in the log among equals."""
        leading = []
        for m in range(self.num_rows):
            entries = [e for e in known if e.row == m]
            claims = [e for e in entries if e.is_claim]
            if claims:
                leading.append(max(claims, key=lambda e: (e.confidence, -e.k)))
        return leading

    # returns, messages ------------------------------------------------------------------------------------------

    def detail_load(self, detail):
        extra = self.reading["per_detail"]
        return F(extra[detail]) if extra.shape else ZERO

    def effects(self):
        for life, r in self.doing_tool("return"):
            life.returned = life.unread = True
            r.arrival = max(r.finish, life.not_before)
            first = life.uid not in self.returned and life.uid not in self.leaving
            self.count["returned_lives"] += first
            self.returned |= {life.uid} if first else set()
            load = F(self.reading["per_claim"][r.full])
            life.report = Mail(
                life.uid,
                max(r.finish, life.not_before),
                r.chosen,
                load,
                life.steps,
                life.spent + life.spent_below,
                r.paid,
                extra=self.detail_load(r.full),
            )
            life.sent |= r.originals
            self.count["empty_selections"] += not r.sent
        self.post = {}
        for life, r in self.doing_tool("message"):
            r.group = GROUPS.get(r.args["to"], 0)
            kids = self.roster(life)
            if r.group == 1:
                to = [self.lives[life.parent]]
            elif r.group == 2:
                to = kids
            elif r.group == 3:
                to = [c for c in self.lives.values() if c.parent == life.parent and c is not life]
            else:
                to = [kids[int(r.args["to"][4:])]]
                r.target = to[0].uid
            r.code = "DONE"
            self.count["empty_selections"] += not r.sent
            r.channels["debate"] -= F(0 if r.originals - life.sent else 0.01)
            life.sent |= r.originals
            for receiver in to:
                self.count["mail_sent"] += 1
                if receiver.mail is not None or receiver.uid in self.leaving:
                    self.count["mail_undeliverable"] += 1
                    if r.group == 0:
                        r.refused = 1
                    continue
                rank = 0 if life.uid == receiver.parent else (2 if r.group == 3 else 1)
                self.post.setdefault(receiver.uid, []).append((rank, life.uid, r))

    # task tools -------------------------------------------------------------------------------------------------

    def newest(self, life):
        """Claims a life can name, newest first."""
        claims = [e for e in life.known if e.is_claim]
        return claims[::-1][: self.options["observed_claims"]]

    def use_tools(self):
        """What comes of task tools; it is told and recorded later in the tick."""
        load = sum(1 for _ in self.doing_tool(*self.task.tools))
        self.outcomes = {}
        for life, r in self.doing_tool(*self.task.tools):
            draw = partial(luck.draw, self.luck_key, life.lineage, life.turn)
            self.outcomes[life.uid] = self.task.use(life, r.tool, r.args, self.newest(life), load, draw)
        if hasattr(self.task, "disk"):  # everyone has read it as it was
            self.task.write(self.outcomes)

    def work(self):
        fresh = []
        for life, r in self.doing_tool(*self.task.tools):
            out = self.outcomes[life.uid]
            life.cursor += out.takes_row
            r.code, r.value = out.code, out.value
            r.channels["tool"] += F(out.tool_reward)
            life.learn(out.learns)
            life.known_before = len(life.known)
            r.channels["role"] += F(0.01 * out.role)
            r.channels["debate"] += F(0.01 * out.verdict)
            if out.claim or out.verdict_entry:
                fresh.append((life, r, out))
        used = {}
        for life, r, out in fresh:
            entry = out.claim or out.verdict_entry
            place, number = self.log[entry.row], used.get(entry.row, 0)
            if number == self.task.per_tick or len(place) >= self.task.places:
                r.refused, r.code, r.value, r.told = 1, "REFUSED", -1, "EMPTY"
                self.count["refused_claims"] += 1
                continue
            used[entry.row] = number + 1
            self.record(entry)
            if out.garbled is not None and len(place) < self.task.places:
                entry.garbled = out.garbled
                self.record(out.garbled)
            life.learn([entry])
            life.known_before = len(life.known)
            r.tainted, r.trusted = entry.tainted, not entry.untrusted

    def assign(self, row):
        self.assigned[row] += 1  # the lead's own searches are not counted

    def record(self, entry):
        entry.k, entry.number = len(self.log[entry.row]), self.numbers
        self.numbers += 1
        self.log[entry.row].append(entry)

    # ends, births, hand-outs ------------------------------------------------------------------------------------

    def ends(self):
        root = self.records[0]
        reasons = []
        if root.tool == "stop":
            reasons.append(STOPPED)
        tokens, turns = self.options["max_tokens"], self.options["max_turns"]
        if (tokens and sum(self.tokens) >= tokens) or (turns and self.count["turns"] >= turns):
            reasons.append(BUDGET)
        if self.tick + 1 >= self.options["max_ticks"]:
            reasons.append(HORIZON)
        if reasons:
            self.stop_reason, self.last = min(reasons), True

    def hand_over(self):
        self.newborn = []
        for life in self.order(list(self.lives.values())):
            if life.uid in self.births:
                role, slots, windows, brief = self.births[life.uid]
                if self.last:
                    self.count["refused_births"] += len(slots)
                    self.records[life.uid].refused += len(slots)
                    continue
                for place, slot in enumerate(slots):
                    child = Life(
                        self.next_uid,
                        slot,
                        self.task.roles.index(role),
                        life.uid,
                        life.depth + 1,
                        luck.child(life.lineage, life.turn, place),
                        skill=self.task.skill(),
                    )
                    self.next_uid += 1
                    self.born[role] += 1
                    self.count["births"] += 1
                    child.steps = life.steps
                    self.newborn.append(child)
                    self.give(life, child, place, windows, brief)
                    if child.role != LEAD:
                        for m in windows[place]:
                            self.assign(m)
                life.cursor = min(len(life.rows), life.cursor + sum(map(len, windows)))
            if life.uid in self.handouts:
                kind, idle, windows, brief = self.handouts[life.uid]
                for place, child in enumerate(idle):
                    child.returned = False
                    child.steps = max(child.steps, life.steps)
                    self.give(life, child, place, windows, brief)
                counted = [w for w, c in zip(windows, idle, strict=True) if c.role != LEAD]
                for window in counted:
                    for m in window:
                        self.assign(m)
                if kind == "next":
                    life.cursor += sum(map(len, windows))

    def give(self, parent, child, place, windows, brief):
        level = ("short", "standard", "detailed").index(brief)
        words = luck.draw(self.luck_key, child.lineage, child.turn, luck.HANDOUT)
        understood, copies = self.task.brief(level, words)
        window = windows[place]
        siblings = len(windows)
        taken = window
        if copies and siblings > 1:
            taken = windows[(place + 1 + luck.below(words[1], 16, 16, siblings - 1)) % siblings]
        child.rows, child.cursor, child.brief = list(taken), 0, level
        self.task.handed(child.skill, understood)
        child.shift = 0
        self.own_clock[child.uid] = child.clock
        child.clock = max(child.clock, self.records[parent.uid].finish)
        child.handed_rows, child.handed_at = len(window), child.clock
        given = self.task.given(parent.known[: parent.known_before], child.role, level, window, child.uid)
        if given:
            self.handed_now[child.uid] = child.learn(given)
            self.heard.setdefault(child.uid, set()).update(self.handed_now[child.uid])
            self.read_work[child.uid] = sum(e.is_claim for e in given) * int(
                self.charges["claim_tokens"][int(level == 2)]
            )
        child.sent = set(child.known)

    # clocks -----------------------------------------------------------------------------------------------------

    def clocks(self):
        for life in self.doing:
            r = self.records[life.uid]
            if r.tool == "wait":
                life.lifted = False
                _, _, _, out = self.groups(life)
                if not out:
                    coming = life.mail.arrival - life.clock if self.topology.listens and life.mail else 0
                    limit = int(self.service["wait_limit_ms"])
                    r.listens = coming > 0
                    life.clock += min(coming, limit) if coming > 0 else int(self.service["idle_ms"])
                else:
                    kind = r.args["for"]
                    need = {"one": 1, "half": -(-len(out) // 2), "all": len(out)}[kind]
                    life.waiting = Waiting(kind, need, life.clock, life.clock + int(self.service["wait_limit_ms"]))
            else:
                life.clock = r.finish
            r.arrival = r.arrival if r.tool == "return" else r.finish
            life.last_result = (self.names.index(r.tool), CODES.index(r.told or r.code), r.value)
            self.serial_ms += r.latency
            life.turn += 1
        for child in self.newborn:
            self.lives[child.uid] = child

    # removal, mail ----------------------------------------------------------------------------------------------

    def remove(self):
        effect = {}
        for uid in sorted(self.leaving):
            life, r = self.lives[uid], self.records[uid]
            r.end, r.terminated = DESPAWNED, True
            effect[uid] = life.clock
            self.count["deaths"] += 1
            if life.returned and life.unread:
                self.count["lost_returns"] += 1
                r.lost = r.tool == "return"
        for life in list(self.lives.values()):
            parent = life.parent
            while parent in self.leaving:
                parent = self.lives[parent].parent
            if parent != life.parent and life.uid not in self.leaving:
                # Whatever an adopted child sends or has sent takes effect no earlier than the despawn itself.
                life.not_before = max(self.records[parent].finish, life.not_before, effect[life.parent])
                if life.report is not None:
                    life.report.arrival = max(life.report.arrival, life.not_before)
                    if self.records[life.uid].tool == "return":
                        self.records[life.uid].arrival = life.report.arrival
                life.parent = parent
                self.count["adopted"] += 1
        for uid in self.leaving:
            self.ended[uid] = life = self.lives.pop(uid)
            life.returned = life.returned and not self.records[uid].lost  # a lost return never was
            life.blocked = False
            self.count["mail_undeliverable"] += life.mail.letters if life.mail else 0
        for life in self.lives.values():
            if life.uid and life.place is not None and not self.children(life):
                life.place = None

    def arrivals(self):
        for uid, letters in self.post.items():
            receiver = self.lives.get(uid)
            arrival, steps, entries, late, up, load = 0, 0, set(), 0, None, F(0)
            letters.sort(key=lambda letter: letter[:2])
            ups = [max(r.finish, r.life.not_before) for _, _, r in letters if r.parent == uid]
            others = [r.finish for _, _, r in letters if r.parent != uid]
            arrival = max(ups + others)
            clock = self.own_clock.get(uid, receiver.clock)
            if others and clock > max(others):
                late = clock - max(others)
                arrival = max(arrival, clock)
            for _, sender, r in letters:
                up = up or r.parent == uid
                steps = max(steps, self.records[sender].life.steps)
                entries |= r.chosen
                load += self.reading["per_message"] + F(r.paid) * self.reading["per_claim"][r.full]
                load += self.detail_load(r.full)
            self.count["mail_late"] += len(others) if late else 0
            self.count["mail_late_ms"] = max(self.count["mail_late_ms"], late)
            receiver.mail = Mail(letters[0][1], arrival, entries, F(load), steps)
            receiver.mail.letters = len(letters)
            receiver.mail.up = up

    def take_mail(self, life):
        mail = life.mail
        if mail is None or mail.arrival > life.clock or life.returned:
            return
        life.mail = None
        self.read_now[life.uid] = self.read_now.get(life.uid, 0) + mail.load
        self.count["mail_delivered"] += mail.letters
        entries = mail.entries
        if life.place is not None:  # mail to a parent weighs on its attention like a return
            life.load = F(life.load + mail.load)
            chance = self.survives(life)
            entries = {e for e in entries if e.luck < chance}
        handed = self.handed_now.get(life.uid, ())
        life.sent -= {e for e in entries if e in handed}
        new = life.learn(entries) + [e for e in entries if e in handed]
        self.heard.setdefault(life.uid, set()).update(new)
        life.lifted = True
        life.steps = max(life.steps, mail.steps)
        if life.uid in self.records:
            self.records[life.uid].received += len(new)
            r = self.records[life.uid]
            r.tainted |= any(e.tainted for e in new)
            r.trusted &= not any(e.untrusted for e in new)

    # aggregation ------------------------------------------------------------------------------------------------

    def readable(self, life, clock=None):
        """Children whose return has arrived by a clock and is unread."""
        clock = life.clock if clock is None else clock
        return [c for c in self.children(life) if c.returned and c.unread and c.report.arrival <= clock]

    def read_returns(self, life, r):
        """What reading costs a reader's attention, and which claims survive it."""
        offered, load = set(), life.load
        for child in [c for c in self.readable(life) if c.uid not in self.leaving]:
            child.unread = False
            life.spent_below += child.report.spent - child.spent_told
            child.spent_told = child.report.spent
            life.load = F(life.load + self.reading["per_message"])
            life.load = F(life.load + child.report.load * F(child.report.count))
            life.load = F(life.load + child.report.extra)
            life.steps = max(life.steps, child.report.steps)
            offered |= child.report.entries
            if life.uid == 0:
                self.told |= child.report.entries
        self.read_now[life.uid] = life.load - load
        chance = self.survives(life)
        r.kept = {e for e in offered if e not in life.known and e.luck < chance}
        if life.uid in self.leaving:  # it takes nothing of it along
            life.load = load

    def survives(self, life):
        """Chance of a claim to survive a reader's load."""
        if self.by_value or life.load <= 0:
            return F(1)
        return min(F(1), self.reading["capacity"] / life.load)

    def settle(self):
        for life in self.lives.values():
            mail, work = self.read_now.get(life.uid, 0), self.read_work.get(life.uid, 0)
            self.task.hear(life.skill, mail + work, mail)
        for life, r in self.doing_tool("aggregate"):
            self.heard.setdefault(life.uid, set()).update(e for e in r.kept if e not in life.known)
        for uid, heard in self.heard.items():
            if hasattr(self.task, "told") and uid in self.lives:
                self.task.told(self.lives[uid], heard)
        for life, r in self.doing_tool("aggregate"):
            if life.uid not in self.lives or r.code == "REFUSED":
                continue
            new = life.learn(r.kept)
            r.received += len(new)
            r.tainted |= any(e.tainted for e in new)
            r.trusted &= not any(e.untrusted for e in new)
            by_row = [[e for e in life.known if e.row == m] for m in range(self.num_rows)]
            if hasattr(self.task, "disk"):
                decided = self.task.pick_row(r.args["rule"], by_row)
            else:
                decided = [self.task.decide(r.args["rule"], m, by_row[m]) for m in range(self.num_rows)]
            result = [values for values, _ in decided]
            r.code = "DONE"
            if life.uid == 0:
                self.gain(result, [leader for _, leader in decided])
                self.answer = result
            else:
                life.known = [e for e in life.known if not e.is_claim or e.value in result[e.row]]
                life.known.sort(key=lambda e: (e.row, e.k))

    def gain(self, answer, winners):
        """What a new answer is worth more than the old one, row by row, goes to those whose claims lead the rows."""
        f1 = self.task.quality
        mixed = [set(values) for values in self.answer]
        for m, leader in enumerate(winners):
            if leader is not None:
                self.leaders[m] = leader
            if mixed[m] != answer[m]:
                before = f1(mixed)
                mixed[m] = answer[m]
                self.pay(self.leaders[m].maker, F(f1(mixed) - before))

    def pay(self, uid, amount):
        if uid in self.records:
            self.records[uid].channels["individual"] += amount
        else:
            self.late[uid] = self.late.get(uid, F(0)) + amount

    # waits and gate ---------------------------------------------------------------------------------------------

    def release(self):
        clock = {life.uid: life.clock for life in self.lives.values()}  # nobody waits for a release of this tick
        for life in self.lives.values():
            life.blocked = False
            kids = self.children(life)
            running = [c for c in kids if not c.returned]
            if life.waiting is not None:
                wait = life.waiting
                coming = [c.report.arrival for c in kids if c.returned and c.report.arrival > life.clock]
                if wait.kind == "one" and life.mail is not None:
                    coming.append(max(life.mail.arrival, life.clock))
                target, coming = wait.deadline, sorted(coming)
                if wait.kind == "all":
                    arrives = coming[-1] if coming and not running else None
                else:
                    arrives = coming[0] if coming else None
                if arrives is not None:
                    target = min(target, arrives)
                if all(clock[c.uid] >= target for c in running):
                    late = arrives is None or wait.deadline < arrives
                    life.clock = max(life.clock, target)
                    wait.need -= sum(1 for arrival in coming if arrival <= life.clock)
                    if wait.kind != "half" or wait.need <= 0 or late:
                        life.waiting = None
                        life.lifted = life.lifted or late
            life.blocked = life.waiting is not None or any(clock[c.uid] < life.clock for c in running)

    # what is seen -----------------------------------------------------------------------------------------------

    def look(self):
        self.legal = {uid: self.legality(life) for uid, life in self.lives.items()}

    def legality(self, life):
        bounds = {"wait_for": 1, "spawn_role": 0, "idle_rows": 0, "child_rows": 0, "own_claims": 0}
        tools, whom = {"wait"}, set()
        if life.returned or life.blocked:
            return {"tools": tools, "whom": whom, "bounds": bounds}
        kids, idle, unread, out = self.groups(life)
        rows = self.spec.roster if self.topology.spawn or self.topology.crew else 0
        claims = self.newest(life)
        bounds["wait_for"] = 3 if out else 1
        deeper = self.topology.sub_leads and life.depth + 1 < self.topology.max_depth
        roles = len(self.options_spawnable())
        bounds["spawn_role"] = roles - (self.topology.sub_leads and not deeper)
        working, bounds["own_claims"] = self.task.legal(life, len(claims))
        tools |= working
        parent = life.parent >= 0
        if life.role == LEAD:
            if self.topology.spawn and life.depth < self.topology.max_depth:
                tools.add("spawn")
            if idle and self.topology.down:
                bounds["idle_rows"] = 1 + min(len(idle), rows)
                tools.add("delegate")
            if kids and not self.topology.crew:
                bounds["child_rows"] = min(len(kids), rows)
                tools.add("despawn")
            if kids or claims:
                tools.add("aggregate")
            if not parent:
                tools.add("stop")
        if parent:
            whom |= {0} if self.topology.up else set()
            tools.add("return")
            if self.topology.peers:
                whom.add(2)
        if kids and self.topology.down:
            whom.add(1)
            whom |= {3 + i for i in range(min(len(kids), rows))}
        if whom:
            tools.add("message")
        if self.options["lead_blocks"] and out and not unread and not life.lifted:
            tools &= {"spawn", "delegate", "message", "despawn", "wait"}
        return {"tools": tools, "whom": whom, "bounds": bounds}

    # rewards ----------------------------------------------------------------------------------------------------

    def reward(self):
        if not self.last:
            return
        for uid, r in self.records.items():
            r.end = r.end or WITH_EPISODE
            if r.terminated:
                continue
            if self.stop_reason == BUDGET or (self.stop_reason == STOPPED and uid == 0):
                r.terminated = True
            else:
                r.truncated = True
        self.beyond_s = sum(max(0, r.finish - self.root.clock) // 1000 for r in self.records.values())
        team = self.task.quality(self.answer)
        team = team - self.price_token * F(sum(self.tokens)) - self.price_second * F(self.lives[0].clock / 1000)
        for r in self.records.values():
            r.channels["team"] = F(team)
        known = [[e for e in self.root.known if e.row == m] for m in range(self.num_rows)]
        self.records[0].channels["debate"] += F(0.01 * self.task.settled(known, self.answer))
        n = self.count["births"]
        if not n:
            return
        told = self.told | set(self.root.known)
        best = self.task.best({e for e in told if e.is_claim})
        serial = max(F(self.serial_ms / 1000), F(1e-3))
        self.records[0].channels |= {
            "orchestration_parallel": F(min(n, 10) / 10),
            "orchestration_finish": F(self.count["returned_lives"] / n),
            "orchestration_speedup": max(F(0), F(1) - F(self.root.clock / 1000) / serial),
            "orchestration_split": F(sum(times == 1 for times in self.assigned) / self.num_rows),
            "orchestration_aggregation": self.task.quality(self.answer) / best if best > 0 else F(1),
        }
