"""DataScience-v0 for the twin: a shared disk of files, what each call does to it, and what its caller believes.

Laws: cards/datascience.md. Tables of numbers come from the environment's parameters; tests/test_datascience.py checks
those.
"""

from dataclasses import dataclass, field

import numpy as np

from twin import luck
from twin.math import Tally
from twin.search import Entry, Outcome

ROLES = ("lead", "engineer", "modeler", "analyst")
TOOLS = ("write_features", "train_model", "tune", "check_artifacts", "submit")
FILES = ("X_train", "y_train", "X_test", "model", "submission")
FEATURES = {"X_train", "y_train", "X_test"}
OUTPUTS = {"write_features": FEATURES, "train_model": {"model"}, "submit": {"submission"}}
NEEDS = {
    "train_model": {"X_train", "y_train"},
    "tune": {"X_train", "y_train", "model"},
    "submit": {"X_test", "model"},
}
OWN = {"lead": set(FILES), "engineer": FEATURES, "modeler": {"model"}, "analyst": {"submission"}}
PATCHES = {"modeler": {"write_features"}, "analyst": {"write_features", "train_model"}}
SCRIPTS = ("write_features", "train_model", "submit")
CLEAN, INCOMPLETE, CRASH, NOT_FOUND, SCHEMA_ERROR, PATCHED, NOT_PATCHED, TUNED, CHECKED = 1, 2, 4, 5, 6, 7, 8, 9, 11
FILES_CLAIM, TRAINED, TUNED_CLAIM, LEAKY = range(4)
NEW, RAN, BROKEN = range(3)
LEVELS = ("short", "standard", "detailed")
F = np.float32
SELF = (
    *("row", "context_fill", "calls_made", "calls_left", "regression"),
    *(f"{state}_{name}" for state in ("saved", "missing") for name in FILES),
    *("mismatch", "tunes", "unchecked", "note", "leak_known", *(f"last_{name}_id" for name in TOOLS)),
)


@dataclass(eq=False)
class Said(Entry):
    """A claim: which files it calls saved and missing, or a score."""

    saved: frozenset = frozenset()
    missing: frozenset = frozenset()
    mismatch: bool = False
    score: int = -1


@dataclass
class Folder:
    """A row's directory, and what is true of it."""

    variant: np.float32
    files: set = field(default_factory=set)
    schema: int = 0
    author: int = -1
    tunes: int = 0
    leak: bool = False
    worth: int = 0
    valid: bool = False


@dataclass
class Skill:
    """A life's own account: what it did and what it believes."""

    calls: int = 0
    context: int = 0
    scripts: dict = field(default_factory=lambda: dict.fromkeys(SCRIPTS, NEW))
    saved: set = field(default_factory=set)
    missing: set = field(default_factory=set)
    mismatch: bool = False
    tunes: int = 0
    unchecked: bool = False
    note: int = 0
    leak: bool = False
    pinned: int = -1
    last: dict = field(default_factory=lambda: dict.fromkeys(TOOLS, 0))


class DataScience:
    """The disk of one episode and the laws that act on it."""

    roles, tools, self_features = ROLES, TOOLS, SELF
    spawnable = ROLES[1:]
    per_tick = None
    chunks = (1,)

    def __init__(self, env, key, luck_key):
        options = env.options
        self.p = p = {name: np.asarray(value) for name, value in vars(env.params.task).items()}
        self.count, self.places = options["num_subtasks"], options["claims_per_row"]
        self.alone = options["topology"] == "single"
        self.passes = options["capacity"]
        t0, t1 = luck.draw(key, luck.TASK, 2**16, luck.ROW)
        self.base = p["base"][luck.field(t0, 0, 10)]
        self.hardness = p["hardness"][luck.field(t0, 10, 10)]
        self.regression = bool(luck.share(t0, 20, 12) < p["regression"])
        self.at = [luck.field(t1, 6 * i, 6) for i in range(5)]  # places in the ranges of the model's parameters
        words = [luck.draw(key, luck.TASK, m, luck.ROW)[0] for m in range(self.count)]
        self.disk = [Folder(p["variant"][luck.field(w, 0, 10)]) for w in words]
        self.note = [[Entry(m, -1, 0, 7, F(0), F(0), level=level) for level in (1, 2, 3)] for m in range(self.count)]
        self.notes = [note for levels in self.note for note in levels]
        self.picked = None

    def skill(self):
        return Skill()

    # work handed out -----------------------------------------------------------------------------------------------

    def brief(self, level, words):
        return True, False

    def handed(self, skill, understood):
        skill.calls, skill.pinned = 0, -1

    def given(self, known, role, level, window, uid):
        """A detailed brief is a standard note on the rows."""
        return [note for m in sorted(set(window)) for note in self.note[m][:2]] if level == 2 and role else []

    def price(self, entries, level):
        return 0

    def hear(self, skill, tokens, mail):
        skill.context += int(tokens)

    def row(self, life):
        """The row a life works on."""
        at = life.rows[life.cursor] if life.rows_left else 0
        if ROLES[life.role] != "analyst":
            return at
        if life.skill.pinned >= 0:
            return life.skill.pinned
        return at if self.picked is None else self.picked

    def told(self, life, heard):
        """What is heard of the own row and row 0 changes beliefs, in the order of the log, the own row last."""
        skill, role, m = life.skill, ROLES[life.role], self.row(life)
        skill.note = max([skill.note, *(e.level for e in heard)])
        saved, missing, mismatch = self.latest([e for e in heard if e.row == 0], [e for e in heard if e.row == m])
        lost = missing & OWN[role]
        if role == "engineer" and mismatch:
            lost, skill.mismatch = lost | {"X_test"}, True
        elif mismatch is False:
            skill.mismatch = False
        skill.saved = (skill.saved | saved) - lost
        skill.missing -= saved

    def latest(self, *parts):
        """(saved, missing, mismatch or None) by claims, part by part, each in the order of the log."""
        state, mismatch = {}, None
        for part in parts:
            for e in sorted((e for e in part if e.is_claim), key=lambda e: e.k):
                # A file named in both ways says nothing new, and takes back what was said before.
                state |= dict.fromkeys(e.saved - e.missing, True) | dict.fromkeys(e.missing - e.saved, False)
                state |= dict.fromkeys(e.saved & e.missing)
                if e.mismatch:
                    mismatch = True
                elif e.score < 0 and "X_test" in e.saved:
                    mismatch = False
        pick = lambda wanted: {name for name, there in state.items() if there is wanted}  # noqa: E731
        return pick(True), pick(False), mismatch

    def newest_score(self, known, m):
        scores = [e for e in known if e.row == m and e.is_claim and e.score >= 0]
        return max(scores, key=lambda e: e.k) if scores else None

    def leaky(self, known, m):
        """Whether a leak has been revealed since the last training, as far as known."""
        newest = lambda kind: max((e.k for e in known if e.row == m and e.is_claim and e.value == kind), default=-1)  # noqa: E731
        return newest(LEAKY) > newest(TRAINED)

    def pick(self, kind, role, known, m):
        role = ROLES[role]
        target = m == (0 if role == "engineer" or self.picked is None else self.picked)
        if kind == "again":
            return target
        _, missing, _ = self.latest([e for e in known if e.row == m])
        if kind == "conflicting":
            return (
                m == 0
                and role == "engineer"
                and any(self.latest([e for e in known if e.row == row])[2] for row in range(self.count))
            )
        if role == "modeler":
            return self.newest_score(known, m) is None
        return target and bool(missing & OWN[role])

    # who may what --------------------------------------------------------------------------------------------------

    def legal(self, life, claims):
        role, skill = ROLES[life.role], life.skill
        closed = skill.calls >= self.p["turn_cap"] or skill.context >= self.p["context_limit"] or not life.rows_left
        if closed or (role == "lead" and not self.alone):
            return set(), 0
        tools = {
            "lead": set(TOOLS),
            "engineer": {"write_features"},
            "modeler": {"write_features", "train_model", "tune"},
            "analyst": {"write_features", "train_model", "submit"},
        }[role]
        return tools | {"check_artifacts"}, 0

    # turns ---------------------------------------------------------------------------------------------------------

    def use(self, life, tool, args, newest, load, draw):
        """One call: what comes of it, before it is told or recorded; the disk changes afterwards."""
        p, skill, role, m = self.p, life.skill, ROLES[life.role], self.row(life)
        (w0, w1), (o0, o1) = draw(luck.WORK), draw(luck.OUTCOME)
        out = Outcome("NOTHING")
        index = TOOLS.index(tool)
        out.tokens = int(p["tokens"][index])
        out.tool_ms = int(p["tool_ms"][index]) * int(p["stretch"][luck.field(o0, 0, 10)]) // 1024
        skill.calls += 1
        skill.context += 200 if tool == "check_artifacts" else 2000
        if role == "analyst":
            skill.pinned = m
        own = self.disk[m]
        there = own.files | (self.disk[0].files & FEATURES)
        if tool == "check_artifacts":
            return self.check(life, out, own, there, m, w0, o1)
        lacking = NEEDS.get(tool, set()) - there
        if lacking:
            skill.saved -= lacking
            skill.missing |= lacking
            skill.last[tool], out.code, out.tool_reward = NOT_FOUND, "REFUSED", -0.01
            return self.say(out, life, m, there, o1)
        if tool == "tune":
            return self.tune(life, out, own, m, w0, o1)
        wanted = OUTPUTS[tool] - (there if tool == "write_features" else own.files)
        again = tool == "write_features" and skill.mismatch
        wanted |= {"X_test"} if again else set()
        if tool in PATCHES.get(role, ()):
            if p["planted"] or not luck.share(w0, 0, 16) < p["repair"][self.at[4]]:
                skill.last[tool], out.code = NOT_PATCHED, "EMPTY"
                return out
            out.written = {"files": wanted, "schema": 2**16 - 1 if again else luck.field(o0, 0, 16)}
            skill.last[tool], out.role = PATCHED, 1
            return self.ran(life, tool, out, own, wanted, set(), m, o0, o1)
        return self.run(life, tool, out, own, there, wanted, again, m, (w0, w1, o0, o1))

    def run(self, life, tool, out, own, there, wanted, again, m, words):
        """A script of the own role: it may crash, meet a schema that does not fit, or leave files unwritten."""
        p, skill, (w0, w1, o0, o1) = self.p, life.skill, words
        lone = ROLES[life.role] == "lead"
        state, index = skill.scripts[tool], SCRIPTS.index(tool)
        rate = p["crash"][index, state, self.at[1] if state == BROKEN else self.at[0]]
        odds = rate + self.hardness + p["fill"] * max(F(skill.context - 2000) - p["calm"], F(0))
        odds = odds + (p["load"] if lone else F(0))
        if p["odds"][luck.field(w0, 0, 12)] < odds:
            skill.scripts[tool], skill.last[tool] = BROKEN, CRASH
            out.code, out.tool_reward = "FAULT", -0.01
            return out
        skill.scripts[tool] = RAN
        kappa = p["kappa"][max(skill.note, 2) if lone else skill.note]
        bites = False
        if tool == "submit":
            test = own if "X_test" in own.files else self.disk[0]
            knows = min(kappa, p["kappa"][2]) if test.author == life.uid else kappa
            bites = F(test.schema / 2**16) < p["mismatch"][self.at[2]] * knows
            if bites and luck.share(w1, 16, 16) < p["loud"]:
                skill.mismatch, skill.last[tool], out.code, out.tool_reward = True, SCHEMA_ERROR, "REJECTED", -0.01
                return self.say(out, life, m, there, o1)
        u = {"y_train": luck.share(w1, 0, 16), "X_test": luck.share(w1, 16, 16)}
        missed = {
            name
            for i, name in enumerate(FILES)
            if u.get(name, luck.share(w0, 16, 16)) < p["miss"][i, self.at[2]] * kappa
            or (name == "X_test" and p["planted"])
        } & wanted
        out.written = {"files": wanted - missed, "gone": {"X_test"} if again else set()}
        out.written |= {"schema": luck.field(o0, 0, 16), "valid": not bites}
        out.role = -1 if missed or bites else 1
        return self.ran(life, tool, out, own, wanted, missed, m, o0, o1)

    def ran(self, life, tool, out, own, wanted, missed, m, o0, o1):
        """A script has run to its end: what its caller believes, and what it says."""
        p, skill = self.p, life.skill
        fooled = bool(p["planted"]) or luck.share(o0, 16, 16) < p["false_belief"][self.at[3]]
        saw = missed if not fooled else set()
        skill.saved = (skill.saved | OUTPUTS[tool] | NEEDS.get(tool, set())) - saw
        skill.missing -= OUTPUTS[tool]
        skill.mismatch = skill.mismatch and tool != "write_features"
        skill.unchecked = True
        skill.last[tool] = CLEAN if "valid" in out.written else PATCHED
        out.code, out.tool_reward = "FOUND", 0.01
        if saw:
            skill.last[tool], out.code, out.tool_reward = INCOMPLETE, "EMPTY", 0.0
        out.written |= {"row": m, "leak": own.leak, "depth": own.tunes}
        after = (own.files - out.written.get("gone", set())) | out.written["files"]
        there = after | (self.disk[0].files & FEATURES)
        if "X_test" in out.written["files"]:
            out.learns = tuple(self.note[m])
        if tool != "train_model":
            return self.say(out, life, m, there, o1)
        skill.tunes, skill.leak = 0, False
        if wanted:
            out.written |= {"leak": bool(luck.share(o1, 20, 12) < p["leak"]), "depth": 0}
        return self.score(out, life, m, TRAINED, out.written["leak"], out.written["depth"], o1)

    def tune(self, life, out, own, m, w0, o1):
        skill = life.skill
        broke = luck.share(w0, 16, 16) < self.p["breaks"]
        out.written = {"row": m, "files": set(), "tuned": not broke, "gone": {"model"} if broke else set()}
        skill.tunes, skill.unchecked, skill.last["tune"] = skill.tunes + 1, True, TUNED
        out.code, out.tool_reward, out.role = "FOUND", 0.01, -1 if broke else 1
        return self.score(out, life, m, TUNED_CLAIM, own.leak, own.tunes + 1, o1)

    def check(self, life, out, own, there, m, w0, o1):
        skill = life.skill
        skill.saved, skill.missing, skill.unchecked = set(there), set(FILES) - there, False
        reveals = own.leak and "model" in there and luck.share(w0, 0, 16) < self.p["reveals"]
        skill.leak = bool(skill.leak or reveals)
        skill.last["check_artifacts"] = CHECKED
        out.code, out.tool_reward = "REJECTED" if reveals else "ACCEPTED", 0.01
        if "model" in there:
            out.verdict = 1 if reveals == own.leak else -1
        return self.say(out, life, m, there, o1, LEAKY if reveals else FILES_CLAIM)

    def say(self, out, life, m, there, o1, kind=FILES_CLAIM):
        """A claim about files as its caller believes."""
        skill = life.skill
        sure = self.sure(skill.saved <= there, o1)
        out.value = kind
        out.claim = Said(
            *(m, -1, life.uid, kind, sure, F(0)),
            saved=frozenset(skill.saved),
            missing=frozenset(skill.missing),
            mismatch=skill.mismatch,
        )
        return out

    def score(self, out, life, m, kind, leak, depth, o1):
        """A claim of a validation score."""
        p = self.p
        worth = self.worth(m, leak, depth)
        score = worth + (p["leak_score"] if leak else F(0)) + p["noise"][luck.field(o1, 0, 10)]
        out.value = kind
        out.claim = Said(
            *(m, -1, life.uid, kind, self.sure(not leak, o1), F(0)),
            saved=frozenset(life.skill.saved),
            score=int(np.rint(F(100) * np.clip(score, F(0), F(1)))),
        )
        return out

    def worth(self, m, leak, depth):
        cost = self.p["leak_cost"] if leak else F(0)
        return self.base + self.disk[m].variant - cost + self.p["gain"][min(depth, 7)]

    def sure(self, right, o1):
        return F(min(int(self.p["confidence"][int(right), luck.field(o1, 10, 10)]), 2**16 - 1) / 2**16)

    def write(self, outcomes):
        """What the tick's calls wrote; of several who write one file, the lowest uid's counts."""
        changes = [(uid, out.written) for uid, out in sorted(outcomes.items()) if out.written]
        worths = {}
        for uid, w in changes:
            if "submission" in w["files"]:
                m = w["row"]
                worth = np.clip(self.worth(m, self.disk[m].leak, self.disk[m].tunes), F(0), F(1))
                worths[uid] = int(np.floor(worth * F(2**16))) if w["valid"] else 0
        for _, w in changes:
            self.disk[w["row"]].files -= w.get("gone", set())
        first = set()
        tuned = {}
        for uid, w in changes:
            folder, m = self.disk[w["row"]], w["row"]
            folder.files |= w["files"]
            for name in ("X_test", "model", "submission"):
                if name not in w["files"] or (m, name) in first:
                    continue
                first.add((m, name))
                if name == "X_test":
                    folder.schema, folder.author = w["schema"], uid
                elif name == "model":
                    folder.leak, folder.tunes = w["leak"], 0
                else:
                    folder.worth, folder.valid = worths[uid], w["valid"]
            if w.get("tuned"):
                tuned[m] = True
        for m in tuned:
            if (m, "model") not in first:
                self.disk[m].tunes += 1

    # answers -------------------------------------------------------------------------------------------------------

    def tallies(self, entries):
        """Claims per kind among known entries of one row."""
        found = {}
        for e in sorted((e for e in entries if e.is_claim), key=lambda e: e.k):
            tally = found.setdefault(e.value, Tally(e.value, e.k, e.k, e.confidence))
            tally.votes, tally.latest = tally.votes + 1, e.k
        return list(found.values())

    def pick_row(self, rule, by_row):
        """[(answer, leading entry)] by row: the picked one's submission is worth its quality."""
        scores = {}
        for m, entries in enumerate(by_row):
            newest = self.newest_score(entries, m)
            if newest is not None and not (rule == "verdict" and self.leaky(entries, m)):
                scores[m] = newest
        self.picked = None
        if scores:
            points = (lambda m: m) if rule == "last" else (lambda m: (scores[m].score, -m))
            self.picked = max(scores, key=points)
        return [({self.disk[m].worth}, scores[m]) if m == self.picked else (set(), None) for m in range(len(by_row))]

    def settled(self, known, answer):
        """1 where scores of several rows are known and the submission of the picked one is worth something."""
        scored = [m for m, entries in enumerate(known) if self.newest_score(entries, m) is not None]
        return int(len(scored) > 1 and self.quality(answer) > 0)

    def quality(self, answer):
        return F(sum(sum(values) for values in answer) / 2**16)

    def best(self, told):
        rows = {e.row for e in told if e.score >= 0}
        return F(max((self.disk[m].worth for m in rows), default=0) / 2**16)

    def info(self, answer):
        quality = self.quality(answer)
        pick = next((m for m, values in enumerate(answer) if values), None)
        folder = self.disk[pick or 0]
        files = folder.files | (self.disk[0].files & FEATURES)
        written = pick is not None and "submission" in files
        success = written and folder.valid
        if self.regression:
            metric = F(8) + F(45) * (F(1) - quality) * (F(1) - quality) if success else F(50)
        else:
            metric = F(0.5) + F(0.42) * quality if success else F(0.5)
        return {
            "quality": quality,
            "success": F(success),
            "submitted": F(written),
            "regression": F(self.regression),
            "metric": metric,
            "files": np.int32(sum(1 << i for i, name in enumerate(FILES) if name in files)),
            "pick": np.int32(-1 if pick is None else pick),
        }

    # what is seen --------------------------------------------------------------------------------------------------

    def own_features(self, life):
        skill = life.skill
        at = skill.pinned if skill.pinned >= 0 else (life.rows[life.cursor] if life.rows_left else 0)
        return (
            at / self.count if life.rows_left else -1,
            skill.context / int(self.p["context_limit"]),
            skill.calls,
            max(int(self.p["turn_cap"]) - skill.calls, 0),
            self.regression,
            *(name in skill.saved for name in FILES),
            *(name in skill.missing for name in FILES),
            *(skill.mismatch, skill.tunes, skill.unchecked, skill.note, skill.leak),
            *skill.last.values(),
        )

    def claim_features(self, known, e):
        score = -1 if e.score < 0 else e.score / 100
        return (score, *(name in e.saved for name in FILES), *(name in e.missing for name in FILES))

    def board_features(self, known, m):
        score = self.newest_score(known, m)
        saved, missing, mismatch = self.latest([e for e in known if e.row == m])
        return (
            -1 if score is None else score.score / 100,
            self.leaky(known, m),
            mismatch is True,
            *(name in saved for name in FILES),
            *(name in missing for name in FILES),
        )
