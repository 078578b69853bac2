"""Math-v0 for the twin: hidden problems, what solving, running code and verifying come to, choices among answers.

Laws: cards/math.md. Tables of numbers come from the environment's parameters; tests/test_math.py checks those.
"""

from dataclasses import dataclass

import numpy as np

from twin import luck
from twin.search import Entry, Outcome

ROLES = ("lead", "solver", "executor", "verifier")
LEAD, SOLVER, EXECUTOR, VERIFIER = range(4)
TOOLS = ("solve", "run_code", "verify")
LEVELS = ("short", "standard", "detailed")
F = np.float32
NO_RUN, SAME, CHANGED = 0, 2, 3
SELF = ("row", "context_fill", "cue")


@dataclass
class Problem:
    """What is true of a problem."""

    names: list  # what each value is called: the right one, then the wrong ones
    difficulty: int  # place in the tables, the hardest first
    computable: bool
    cue: bool
    common: np.float32
    tie: int


@dataclass(eq=False)
class Answer(Entry):
    """A claim, or a verdict on one."""

    role: int = 0
    run: int = NO_RUN
    length: int = 0


@dataclass
class Skill:
    """A life's own account with the task."""

    solves: int = 0
    context: int = 0
    detailed: bool = False
    failed: bool = False


@dataclass
class Tally:
    """Votes on one value of a problem; every claim is a vote."""

    value: int
    first: int
    latest: int
    confidence: np.float32
    votes: int = 0
    accepts: int = 0
    rejects: int = 0

    @property
    def number(self):
        return self.votes


class Math:
    """Problems of one episode and the laws that act on them."""

    roles, tools, self_features = ROLES, TOOLS, SELF
    spawnable = ROLES[1:]
    per_tick = None  # no limit on the entries of a row in a tick

    def __init__(self, env, key, luck_key):
        options = env.options
        self.p = {name: np.asarray(value) for name, value in vars(env.params.task).items()}
        self.count, self.places = options["num_subtasks"], options["claims_per_row"]
        self.vote = options["oracle_form"] == "vote"
        self.alone = options["topology"] == "single"
        self.show = options["length_visible"] and not self.vote
        self.passes = 12 if self.vote else options["capacity"]
        if options["topology"] == "debate":
            self.passes *= 5  # answers of each debater
        self.values = 4 if self.vote else 8
        self.cost_of_claim = [int(x) for x in np.asarray(env.params.charges.claim_tokens)]
        p = self.p
        self.rows = []
        for m in range(self.count):
            w0, w1 = luck.draw(key, luck.TASK, m, luck.ROW)
            v0, v1 = luck.draw(key, luck.TASK, m + 2**16, luck.ROW)
            l0, l1 = luck.draw(luck_key, luck.TASK, m, luck.ROW)
            names = list(range(self.values))
            for step, i in enumerate(range(self.values - 1, 0, -1)):
                j = luck.below([w1, v0, v1][step // 3], 10 * (step % 3), 10, i + 1)
                names[i], names[j] = names[j], names[i]
            computable = bool(luck.share(w0, 10, 10) < p["computable"])
            tells = bool(luck.share(w0, 20, 10) < p["cue"])
            self.rows.append(
                Problem(
                    names=names,
                    difficulty=luck.field(w0, 0, 10),
                    computable=computable,
                    cue=computable if tells else not computable,
                    common=luck.share(l1, 0, 16),
                    tie=l0,
                )
            )

    def skill(self):
        return Skill()

    # work handed out -----------------------------------------------------------------------------------------------

    def brief(self, level, words):
        return level == 2, False

    def handed(self, skill, detailed):
        skill.detailed, skill.failed = detailed, False

    def given(self, known, role, level, window, uid):
        """Entries that go with a window, from what the parent knows."""
        if role == LEAD:
            return []
        rows = [e for e in known if e.row in window]
        if level == 2:
            return rows
        claims = [e for e in rows if e.is_claim]
        if role == SOLVER:
            own = [e for e in rows if not e.is_claim and e.on.origin == uid]
            return claims + own if level == 1 else []
        if level == 1:
            return claims
        return [e for e in claims if e is self.newest(known, e.row)]

    def price(self, entries, level):
        """Tokens of writing entries down for a child."""
        return sum(e.is_claim for e in entries) * self.cost_of_claim[level == 2]

    def newest(self, known, m):
        claims = [e for e in known if e.row == m and e.is_claim]
        return max(claims, key=lambda e: e.k) if claims else None

    def net(self, known, claim):
        """(accepts - rejects, verdicts) known on a claim."""
        verdicts = [e.accepts for e in known if e.on is claim]
        return 2 * sum(verdicts) - len(verdicts), len(verdicts)

    def pick(self, kind, role, known, m):
        """Whether a selector takes a problem that was handed out."""
        claim = self.newest(known, m)
        claims = [e for e in known if e.row == m and e.is_claim]
        values = {e.value for e in claims}
        if kind == "again":
            return True
        if kind == "missing":
            if role in (SOLVER, LEAD):
                return claim is None
            if role == EXECUTOR:
                return claim is not None and self.rows[m].cue and not any(e.run for e in claims)
            return claim is not None and self.net(known, claim)[1] == 0
        if role != SOLVER:
            return len(values) > 1
        if claim is None:
            return True
        net, verdicts = self.net(known, claim)
        return net < 0 or (verdicts == 0 and len(values) > 1)

    def hear(self, skill, tokens, mail):
        skill.context += int(tokens)
        skill.detailed = skill.detailed or mail >= 1000

    # who may what --------------------------------------------------------------------------------------------------

    def legal(self, life, claims):
        """(tools, how many claims can be named)."""
        bound = {LEAD: claims, SOLVER: 0}.get(life.role, 1)
        tools, lone = set(), life.role == LEAD and self.alone
        if life.skill.context >= int(self.p["context_limit"]):
            return tools, bound
        if (life.role == SOLVER or lone) and life.rows_left and not (self.vote and life.skill.solves >= 12):
            tools.add("solve")
        if not self.vote:
            for tool, role in (("run_code", EXECUTOR), ("verify", VERIFIER)):
                if (life.role == role and life.rows_left) or (lone and claims):
                    tools.add(tool)
        return tools, bound

    # turns ---------------------------------------------------------------------------------------------------------

    def use(self, life, tool, args, newest, load, draw):
        """One turn of a task tool: what comes of it, before it is told or recorded."""
        p, skill = self.p, life.skill
        work, outcome = draw(luck.WORK), draw(luck.OUTCOME)
        rate = p["fault"] * max(F(1), F(load) / p["provider_limit"])
        fault = bool(luck.share(work[0], 0, 16) < rate)
        if tool == "solve":
            skill.solves += 1
            out = self.solve(life, args.get("effort", "high"), work, outcome)
            if fault:
                return Outcome("FAULT")
            if out.claim:
                skill.context += 1000
            return out
        by_name = life.role == LEAD
        m = newest[int(args["claim"])].row if by_name else life.rows[life.cursor]
        claims = sorted((e for e in life.known if e.row == m and e.is_claim), key=lambda e: e.k)
        judged = {e.on for e in life.known if not e.is_claim and e.origin == life.uid}
        if by_name:
            target = newest[int(args["claim"])]
        elif tool == "verify":
            target = next((e for e in reversed(claims) if e not in judged), None)
        else:
            target = claims[-1] if claims else None
        if fault:
            return Outcome("FAULT")
        if target is None:
            skill.failed = False if tool == "run_code" else skill.failed
            return Outcome("EMPTY", takes_row=not by_name, tool_reward=-0.01)
        if tool == "run_code":
            return self.run(life, target, work, outcome, by_name)
        left = [e for e in claims if e not in judged]
        return self.verify(life, target, target in judged, by_name, len(left), work, outcome)

    def solve(self, life, effort, work, outcome):
        p, m = self.p, life.rows[life.cursor]
        problem = self.rows[m]
        level = ("low", "medium", "high").index(effort)
        claims = [e for e in life.known if e.row == m and e.is_claim]
        own = [e for e in claims if e.origin == life.uid]
        others = sorted((e for e in claims if e.origin != life.uid), key=lambda e: -e.k)[:4]
        u, chance = luck.unit(outcome[0]), p["chance"][level, problem.difficulty]
        loops, parent = False, 0
        if luck.share(work[1], 0, 12) < p["copy"][int(life.skill.detailed), len(others)]:
            weights = [
                3 ** (2 + max(-2, min(2, self.net(life.known, e)[0]))) if life.skill.detailed else 1 for e in others
            ]
            point, i = luck.field(work[1], 12, 12) * sum(weights) >> 12, 0
            while point >= weights[i]:
                point, i = point - weights[i], i + 1
            value, parent = others[i].value, others[i].k
        elif self.rejected(life, own) and luck.share(work[1], 24, 8) < p["anchor"]:
            value = max(own, key=lambda e: e.k).value
        else:
            kind = 0
            if not u < chance:
                share = luck.share(outcome[1], 0, 12)
                kind = 1 + sum(bool(share >= p["wrong"][i]) for i in range(self.values - 2))
                loops = bool(u < chance + (F(1) - chance) * p["loop"])
            value = problem.names[kind]
        right = value == problem.names[0]
        length = int(p["length"][problem.difficulty])
        if not right:
            length = length * int(p["wrong_length"]) // 256
        length = length * int(p["stretch"][luck.field(work[0], 16, 10)]) // 1024
        length = max(length // (4, 2, 1)[level], 1)
        cap = int(p["cap"][level])
        out = Outcome("EMPTY", takes_row=True)
        out.tokens = int(p["flat_tokens"]) or (cap if loops else min(length, cap))
        if not loops and length <= cap:
            self.claims(out, m, life, value, outcome, length=length)
            out.parent = parent
        return out

    def rejected(self, life, own):
        return bool(own) and self.net(life.known, max(own, key=lambda e: e.k))[0] < 0

    def claims(self, out, m, life, value, outcome, length=0, run=NO_RUN):
        right = int(value == self.rows[m].names[0])
        confidence = F(min(int(self.p["confidence"][right, luck.field(outcome[1], 12, 10)]), 2**16 - 1) / 2**16)
        out.code, out.value, out.tool_reward, out.role = "FOUND", value, 0.01, 1 if right else -1
        out.claim = Answer(m, -1, life.uid, value, confidence, F(0), role=life.role, run=run, length=length)

    def run(self, life, target, work, outcome, by_name):
        p, problem, skill = self.p, self.rows[target.row], life.skill
        out = Outcome("EMPTY", tool_reward=-0.01)
        out.tokens, out.tool_tokens, out.outside = int(p["run_tokens"][0]), int(p["run_tokens"][1]), True
        skill.context += 100
        again = skill.failed
        if luck.share(work[1], 0, 16) < p["fails"][int(again)]:
            skill.failed = not again
            out.takes_row = again and not by_name
            return out
        skill.failed, out.takes_row = False, not by_name
        u, value = luck.unit(outcome[0]), target.value
        if problem.computable and u < p["fixes"]:
            value = problem.names[0]
        if not problem.computable and u < p["misformalised"]:
            value = problem.names[1 + luck.below(outcome[1], 0, 12, self.values - 1)]
        self.claims(out, target.row, life, value, outcome, run=SAME if value == target.value else CHANGED)
        return out

    def verify(self, life, target, judged, by_name, left, work, outcome):
        p, problem = self.p, self.rows[target.row]
        out = Outcome("REFUSED", tool_reward=-0.01, takes_row=not by_name and left <= 1)
        out.tokens = int(p["verify_tokens"])
        if judged:
            return out
        life.skill.context += 100
        u = problem.common if luck.share(work[1], 0, 8) < p["correlation"] else luck.unit(outcome[0])
        if target.value == problem.names[0]:
            accepts = bool(u < p["accept"][problem.difficulty])
        else:
            accepts = bool(u >= p["reject"][problem.difficulty])
        out.code, out.tool_reward = "ACCEPTED" if accepts else "REJECTED", 0.01
        out.role = out.verdict = 1 if accepts == (target.value == problem.names[0]) else -1
        out.verdict_entry = Answer(target.row, -1, life.uid, target.value, F(0), F(0), on=target, accepts=accepts)
        return out

    # answers -------------------------------------------------------------------------------------------------------

    def tallies(self, entries):
        """Votes per value among known entries of one problem, in the order of the log."""
        found = {}
        for e in sorted((e for e in entries if e.is_claim), key=lambda e: e.k):
            tally = found.setdefault(e.value, Tally(e.value, e.k, e.k, e.confidence))
            tally.votes, tally.latest = tally.votes + 1, e.k
        for e in entries:
            if not e.is_claim and e.value in found:
                found[e.value].accepts += e.accepts
                found[e.value].rejects += not e.accepts
        return list(found.values())

    def decide(self, rule, m, entries):
        """Values a rule reports for a problem, and the claim that leads it."""
        tallies, tie = self.tallies(entries), self.rows[m].tie
        if not tallies:
            return set(), None
        nibble = lambda t: (tie >> (4 * t.value)) & 15  # noqa: E731
        points = {
            "last": lambda t: (t.latest,),
            "majority": lambda t: (t.votes, nibble(t)),
            "verdict": lambda t: (t.votes + t.accepts - t.rejects, t.latest),
            "best": lambda t: (t.accepts - t.rejects, t.votes, t.latest),
        }[rule]
        best = max(tallies, key=lambda t: (*points(t), -t.value))
        place = best.latest if rule == "last" else best.first
        return {best.value}, next(e for e in entries if e.is_claim and e.k == place)

    def right(self, answer):
        return sum(answer[m] == {row.names[0]} for m, row in enumerate(self.rows))

    def settled(self, known, answer):
        """Number of problems with several answers known of which the right one is chosen."""
        disputed = [m for m, entries in enumerate(known) if len(self.tallies(entries)) > 1]
        return sum(answer[m] == {self.rows[m].names[0]} for m in disputed)

    def quality(self, answer):
        return F(self.right(answer) / self.count)

    def best(self, told):
        """Quality of the best answer among claims."""
        return self.quality([{row.names[0]} & {e.value for e in told if e.row == m} for m, row in enumerate(self.rows)])

    def info(self, answer):
        right = self.right(answer)
        return {
            "quality": self.quality(answer),
            "success": F(right == self.count),
            "right": np.int32(right),
            "answered": np.int32(sum(map(bool, answer))),
        }

    # what is seen --------------------------------------------------------------------------------------------------

    def own_features(self, life):
        if not life.rows_left:
            return (-1, life.skill.context / int(self.p["context_limit"]), 0)
        m = life.rows[life.cursor]
        return (m / self.count, life.skill.context / int(self.p["context_limit"]), self.rows[m].cue)

    def claim_features(self, known, e):
        verdicts = [v.accepts for v in known if v.on is e]
        size = 0
        if self.show:
            length = max(e.length, 16)
            octave = length.bit_length() - 1
            half = length >= 3 * 2 ** (octave - 1)
            size = min(2 * octave + half, 35) / 32
        return (e.role, size, sum(verdicts), len(verdicts) - sum(verdicts), e.run)

    def board_features(self, known, m):
        claim = self.newest(known, m)
        net, run = (self.net(known, claim)[0], claim.run) if claim else (0, 0)
        return (net, run, self.rows[m].cue)
