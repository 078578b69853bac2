"""Search-v0 for the twin: hidden rows, what `search` and `check` find, votes, item-F1. Laws: cards/search.md."""

from dataclasses import dataclass, field

import numpy as np

from twin import luck

LEAD, SEARCHER, CHECKER = range(3)
ROLES = ("lead", "searcher", "checker")
VALUES = 8
GROUP_ROWS = 8
F = np.float32
ZERO = F(0)


@dataclass
class Row:
    """What is true of a row and its fixed luck."""

    truth: int
    answerable: bool
    hard: bool
    modal: int  # the modal wrong value, counted from the truth
    poison: int  # the false value that is planted
    page: bool  # a page of this row may show it
    injected: bool  # with an instruction
    common: np.float32
    tie: int
    reject: np.float32


@dataclass
class Entry:
    """One entry of the claim log: a claim, or a verdict on one."""

    row: int
    k: int
    origin: int | tuple
    value: int
    confidence: np.float32
    luck: np.float32
    tainted: bool = False
    untrusted: bool = False
    garbled: "Entry | None" = None  # what a summary sends instead
    on: "Entry | None" = None  # a verdict: the claim it judges
    accepts: bool = False
    level: int = 0  # of a note: who is told with so much detail is told it

    @property
    def maker(self) -> int:
        """Uid of the life whose work it is; a garbled form is no independent origin, but its maker is paid."""
        return self.origin[1] if isinstance(self.origin, tuple) else self.origin

    @property
    def is_claim(self) -> bool:
        return self.on is None and not self.level

    def __hash__(self):
        return hash((self.row, self.k))

    def __eq__(self, other):
        return self is other


@dataclass
class Skill:
    """A life's own account with the task."""

    turns: int = 0
    row: int | None = None
    left: int = 0
    understood: bool = True
    next_claim: int = 0


@dataclass
class Outcome:
    """What one call of a task tool came to; the engine records its entries."""

    code: str
    value: int = -1
    claim: Entry | None = None
    garbled: Entry | None = None
    verdict_entry: Entry | None = None
    takes_row: bool = False
    tool_reward: float = 0.0
    role: int = 0  # 1 right work, -1 wrong
    verdict: int = 0  # 1 one that agrees with the truth, -1 one that does not
    tokens: int = 0  # where what a call costs depends on what came of it
    tool_tokens: int = 0
    outside: bool = False
    tool_ms: int = 0
    learns: tuple = ()  # notes
    written: dict = field(default_factory=dict)  # what changes on a shared disk


@dataclass
class Tally:
    """Votes on one value of a row."""

    value: int
    first: int
    origins: set = field(default_factory=set)
    confidence: np.float32 = ZERO
    accepts: int = 0
    rejects: int = 0
    latest: int = -1

    @property
    def number(self):
        return len(self.origins)


class Search:
    """Rows of one episode and the laws that act on them."""

    roles, tools, self_features = ROLES, ("search", "check"), ("turns_used", "row_in_progress")
    spawnable = ROLES[1:]
    passes, per_tick = 1, 2
    values = VALUES

    def __init__(self, env, key, luck_key):
        options = env.options
        self.p = {name: np.asarray(value) for name, value in vars(env.params.task).items()}
        self.cost_of_claim = int(np.asarray(env.params.charges.claim_tokens)[1])
        self.count = options["num_subtasks"]
        self.places = options["claims_per_row"]
        p = self.p
        self.rows = []
        for m in range(self.count):
            w0, w1 = luck.draw(key, luck.TASK, m, luck.ROW)
            l0, l1 = luck.draw(luck_key, luck.TASK, m, luck.ROW)
            truth = luck.field(w1, 0, 3)
            word = luck.draw(key, luck.TASK, m + 2**16, luck.ROW)[0]
            injected = options["injection"] > 0 and bool(luck.share(word, 0, 10) < p["injection"])
            self.rows.append(
                Row(
                    truth=truth,
                    answerable=bool(luck.share(w0, 10, 10) >= p["unanswerable"]),
                    hard=bool(luck.share(w0, 20, 12) < p["hard"]),
                    modal=luck.below(w1, 3, 14, 7),
                    poison=(truth + 1 + luck.below(w1, 17, 15, 7)) % VALUES,
                    page=injected or bool(luck.share(w0, 0, 10) < p["poison"]),
                    injected=injected,
                    common=luck.share(l1, 16, 16),
                    tie=l0,
                    reject=luck.share(l1, 0, 16),
                )
            )

    # briefs --------------------------------------------------------------------------------------------------------

    def brief(self, level, words):
        """Whether a brief is understood, and whether a sibling's window is taken."""
        understood = luck.unit(words[0]) < self.p["understood"][level]
        return bool(understood), bool(luck.share(words[1], 0, 16) < self.p["copies"][level])

    def skill(self):
        return Skill()

    def handed(self, skill, understood):
        skill.row, skill.left, skill.understood, skill.next_claim = None, 0, understood, 0

    def given(self, known, role, level, window, uid):
        """A checker takes over all its parent knows."""
        return list(known) if role == CHECKER else []

    def price(self, entries, level):
        return len(entries) * self.cost_of_claim

    def pick(self, kind, role, known, m):
        values = {e.value for e in known if e.row == m and e.is_claim}
        return not values if kind == "missing" else len(values) > 1

    def hear(self, skill, tokens, mail):
        """Reading leaves no trace here but the reader's load."""

    def legal(self, life, claims):
        """(tools, how many claims can be named)."""
        tools = set()
        if not self.at_limit(life.role, life.skill):
            if life.role != CHECKER and life.rows_left:
                tools.add("search")
            if (life.role == LEAD and claims) or (life.role == CHECKER and life.rows_left):
                tools.add("check")
        return tools, 1 if life.role == CHECKER else claims

    def use(self, life, tool, args, newest, load, draw):
        """One turn of a task tool."""
        if tool == "search":
            upcoming = life.rows[life.cursor] if life.rows_left else None
            told = any(e.tainted and (not e.untrusted or self.rows[e.row].injected) for e in life.known)
            obeys = told and bool(luck.unit(luck.draw(*draw.args[:2], 0, luck.OBEY)[0]) < self.p["obey"])
            return self.search(life.uid, life.skill, upcoming, load, draw, {e.row for e in life.known}, obeys)
        claim = newest[int(args["claim"])] if life.role != CHECKER else self.upcoming(life)
        judged = claim is not None and any(e.on is claim and e.origin == life.uid for e in life.known)
        out = self.check(life.uid, life.skill, claim, load, draw, judged)
        if life.role == CHECKER and out.code != "FAULT":
            # A checker stays in a row while claims with a higher place are to be judged.
            more = [e for e in life.known if claim and e.row == claim.row and e.is_claim and e.k > claim.k]
            life.skill.next_claim = claim.k + 1 if more else 0
            out.takes_row = not more
        return out

    def upcoming(self, life):
        claims = [e for e in life.known if e.row == life.rows[life.cursor] and e.is_claim]
        claims = sorted((e for e in claims if e.k >= life.skill.next_claim), key=lambda e: e.k)
        return claims[0] if claims else None

    def own_features(self, life):
        return (life.skill.turns / 100, life.skill.row is not None)

    def claim_features(self, known, e):
        return ()

    def board_features(self, known, m):
        return ()

    def best(self, told):
        """Quality of the best answer among claims."""
        held = [{row.truth} & {e.value for e in told if e.row == m and e.is_claim} for m, row in enumerate(self.rows)]
        return self.f1([x if row.answerable else set() for x, row in zip(held, self.rows, strict=True)])

    def settled(self, known, answer):
        """Number of rows with several values known and the right one alone reported."""
        disputed = [m for m, entries in enumerate(known) if len(self.tallies(entries)) > 1]
        return sum(self.rows[m].answerable and answer[m] == {self.rows[m].truth} for m in disputed)

    def quality(self, answer):
        return self.f1(answer)

    def at_limit(self, role, skill):
        return skill.turns >= int(self.p["limit"][role])

    def faulty(self, word, load):
        rate = self.p["fault"] * max(F(1), F(load) / self.p["provider_limit"])
        return bool(luck.share(word, 0, 16) < rate)

    # search --------------------------------------------------------------------------------------------------------

    def search(self, uid, skill, next_row, load, draw, rows_known, obeys):
        """One search turn of a life; to search a row one knows something of is a useless repeat."""
        p, work = self.p, draw(luck.WORK)
        before = skill.turns
        skill.turns += 1
        out = Outcome("IN_PROGRESS")
        if skill.row != next_row:  # a row in progress that was handed on is forgotten
            skill.row, skill.left = next_row, int(p["length"][luck.field(work[0], 16, 10)])
        if self.faulty(work[0], load):
            out.code = "FAULT"
            return out
        skill.left -= 1
        out.tool_reward = -0.01 if skill.row in rows_known else 0.01
        if skill.left > 0:
            return out
        m, skill.row, out.takes_row = skill.row, None, True
        row = self.rows[m]
        q = p["q"][before]
        if row.hard:
            q = q * p["hard_factor"]
        if not skill.understood:
            q = q * p["lost_factor"]
        if not row.answerable:
            q = F(0)
        u = row.common if luck.share(work[1], 0, 8) < p["correlation"] else luck.unit(work[1])
        wrong_rate = p["wrong_rate"][int(skill.understood)]
        right = bool(u < q)
        if not right and not u < q + (F(1) - q) * wrong_rate:
            out.code = "EMPTY"
            return out
        outcome, own = draw(luck.OUTCOME), draw(luck.CLAIM)
        other = (row.modal + 1 + luck.below(outcome[0], 10, 12, 6)) % 7
        wrong = row.modal if luck.share(outcome[0], 0, 10) < p["modal"] else other
        value = row.truth if right else (row.truth + 1 + wrong) % VALUES
        shown = row.page and bool(luck.share(outcome[0], 22, 10) < p["poison_hit"])
        tainted = shown or obeys
        if tainted:
            value = row.poison
        confidence = F(p["confidence"][int(right or tainted), luck.field(outcome[1], 0, 10)]) / F(2**16)
        out.code, out.value, out.role = "FOUND", value, 1 if row.answerable and value == row.truth else -1
        out.claim = Entry(m, -1, uid, value, confidence, luck.unit(own[1]), tainted, shown)
        if luck.share(own[0], 0, 12) < p["garble"]:
            twin = self.other_wrong(value, row.truth, own[0])
            out.garbled = Entry(m, -1, ("garbled", uid, m, skill.turns), twin, confidence, luck.unit(own[1]))
        return out

    def other_wrong(self, value, truth, word):
        offset = (value - truth - 1) % VALUES
        step = luck.below(word, 12, 16, 7) if offset == 7 else (offset + 1 + luck.below(word, 12, 16, 6)) % 7
        return (truth + 1 + step) % VALUES

    def is_right(self, entry):
        row = self.rows[entry.row]
        return row.answerable and entry.value == row.truth

    # check ---------------------------------------------------------------------------------------------------------

    def check(self, uid, skill, claim, load, draw, judged):
        """One verdict on a claim; `judged`: the caller's earlier verdicts known."""
        p, work = self.p, draw(luck.WORK)
        skill.turns += 1
        if self.faulty(work[0], load):
            return Outcome("FAULT")
        if claim is None or judged:
            return Outcome("REFUSED" if judged else "EMPTY", tool_reward=-0.01)
        u = luck.unit(work[1])
        right = self.is_right(claim)
        accepts = bool(u >= p["check_reject"])
        if right:
            accepts = bool(u < p["check_accept"][int(self.rows[claim.row].hard)])
        fixed = luck.unit(draw(luck.CLAIM)[1])
        verdict = Entry(claim.row, -1, uid, claim.value, F(0), fixed, on=claim, accepts=accepts)
        code = "ACCEPTED" if accepts else "REJECTED"
        agrees = 1 if accepts == right else -1
        return Outcome(code, verdict_entry=verdict, tool_reward=0.01, role=agrees, verdict=agrees)

    # votes ---------------------------------------------------------------------------------------------------------

    def tallies(self, entries):
        """Votes per value among known entries of one row, in the order of the log."""
        found = {}
        for entry in sorted(entries, key=lambda e: e.k):
            if entry.is_claim:
                tally = found.setdefault(entry.value, Tally(entry.value, entry.k))
                tally.origins.add(entry.origin)
                tally.confidence = tally.confidence or entry.confidence
                tally.latest = entry.k
        for entry in entries:
            if not entry.is_claim and entry.value in found:
                tally = found[entry.value]
                tally.accepts += entry.accepts
                tally.rejects += not entry.accepts
        return list(found.values())

    def decide(self, rule, m, entries):
        """Values a rule reports for a row, and the claim that leads it."""
        tallies, row = self.tallies(entries), self.rows[m]
        if not tallies:
            return set(), None
        nibble = lambda t: (row.tie >> (4 * t.value)) & 15  # noqa: E731
        points = {
            "last": lambda t: (t.latest,),
            "majority": lambda t: (len(t.origins),),
            "union": lambda t: (len(t.origins),),
            "verdict": lambda t: (len(t.origins) + t.accepts - t.rejects, len(t.origins)),
            "best": lambda t: (t.accepts - t.rejects, len(t.origins)),
        }[rule]
        best = max(tallies, key=lambda t: (*points(t), nibble(t), -t.first))
        leader = next(e for e in entries if e.is_claim and e.k == (best.latest if rule == "last" else best.first))
        if rule == "union":
            return {t.value for t in tallies}, leader
        all_wrong = not any(row.answerable and t.value == row.truth for t in tallies)
        if rule != "last" and all_wrong and row.reject < self.p["reject_wrong"]:
            return set(), None
        return {best.value}, leader

    def count_right(self, answer):
        right = sum(row.answerable and row.truth in answer[m] for m, row in enumerate(self.rows))
        return right, sum(map(len, answer)), sum(row.answerable for row in self.rows)

    def f1(self, answer):
        right, reported, wanted = self.count_right(answer)
        return F(2 * right) / F(reported + wanted) if reported + wanted else F(1)

    def info(self, answer):
        right, reported, wanted = self.count_right(answer)
        exact = [
            values == ({row.truth} if row.answerable else set()) for values, row in zip(answer, self.rows, strict=True)
        ]
        groups = [range(i, min(i + GROUP_ROWS, self.count)) for i in range(0, self.count, GROUP_ROWS)]
        whole = sum(all(exact[m] for m in g) for g in groups)
        told = sum(any(answer[m] for m in g) for g in groups)
        sought = sum(any(self.rows[m].answerable for m in g) for g in groups)
        return {
            "quality": self.f1(answer),
            "row_f1": F(2 * whole) / F(told + sought) if told + sought else F(1),
            "success": F(all(exact)),
            "right": right,
            "reported": reported,
            "answerable": wanted,
        }
