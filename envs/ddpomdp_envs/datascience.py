"""DataScience-v0: engineers, modelers and analysts hand files to each other (MAPPA's DSBench, AutoGen).

Laws, presets and sources stand in the card, cards/datascience.md. A row is one variant of the pipeline with a directory
of its own on the shared disk; the disk is part of the hidden facts. Agents know what they believe of it.

Axis letters: N slot, P parent place, M row (variant), K claim of a row, W words of a claim set, S place in a range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import byvalue
from ddpomdp import luck as luck_
from ddpomdp.byvalue import ValueMasks, ValueVotes
from ddpomdp.claims import Log, NewClaims, row_and_k, union
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, SELECTORS, Legal, Tool
from ddpomdp.luck import Purpose
from ddpomdp.params import confidence_table, lognormal_table
from ddpomdp.pytree import Fields, once, pytree, replace
from ddpomdp.task import Effort, Worked, Working
from ddpomdp_envs.datascience_claims import (
    EVERY,
    FILES,
    LEAKY,
    MODEL,
    SAVED_FILES,
    SUBMISSION,
    TRAINED,
    TUNED,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
    heard,
    read,
    said,
)
from ddpomdp_envs.math import pass_rates

ROLES = ("lead", "engineer", "modeler", "analyst")
LEAD, ENGINEER, MODELER, ANALYST = range(len(ROLES))
TOOLS = ("write_features", "train_model", "tune", "check_artifacts", "submit")
WRITE, TRAIN, TUNE, CHECK, SUBMIT = range(FIRST_TASK_TOOL, FIRST_TASK_TOOL + len(TOOLS))
RULES = ("last", "best", "verdict")
CHECKED = ("verdict",)  # those that heed checks
FEATURES = X_TRAIN | Y_TRAIN | X_TEST
# Files that a tool writes and needs, in the order of `TOOLS`.
WRITES = (FEATURES, MODEL, 0, 0, SUBMISSION)
NEEDS = (0, X_TRAIN | Y_TRAIN, X_TRAIN | Y_TRAIN | MODEL, 0, X_TEST | MODEL)
# Own outputs of a role, inputs of its tools, and the tools of the roles above it.
OWN = (EVERY, FEATURES, MODEL, SUBMISSION)
INPUTS = (0, 0, X_TRAIN | Y_TRAIN, X_TEST | MODEL)
NOTES = ("short", "standard", "full")
DETAILS = ("list", *NOTES)
DETAIL_TOKENS = (0, 40, 150, 1_000)
KAPPA = (1.0, 0.8, 0.5, 0.47)  # by level of the schema note known
STANDARD = 2
TOKENS = (900, 700, 600, 100, 500)
TOOL_S = (3.0, 6.0, 6.0, 1.0, 3.0)
CONTEXT = (2_000, 2_000, 2_000, 200, 2_000)
RANGE = 64  # places of a range of model parameters
GAINS = 8  # tunes after which the gain is taken as full
CRASH_BITS = 12
BELIEFS = tuple(f"{state}_{name}" for state in ("saved", "missing") for name in FILES)
OUTCOMES = tuple(f"last_{name}_id" for name in TOOLS)


class Outcome(IntEnum):
    """What came of a call, as the artefact log has it."""

    NONE = 0
    SAVED = 1  # clean, every output there
    INCOMPLETE = 2  # clean, something missing, and the caller saw it
    FALSE_BELIEF = 3  # clean, something missing, and the caller believes that all is saved
    CRASH = 4
    NOT_FOUND = 5
    SCHEMA_ERROR = 6
    PATCHED = 7
    NOT_PATCHED = 8
    TUNED = 9
    BROKE = 10  # a tune that broke the model file, unseen
    CHECKED = 11
    RETURN_COMPLETE = 12
    RETURN_NAMING = 13  # says what is missing
    RETURN_FALSE = 14
    RETURN_CAP_VICTIM = 15  # out of turns, an input was missing
    RETURN_CAP = 16


# As its caller knows it: a false belief looks like all saved, a broken model file like a tune.
_SEEN = tuple(
    {Outcome.FALSE_BELIEF: Outcome.SAVED, Outcome.BROKE: Outcome.TUNED}.get(outcome, outcome)
    for outcome in Outcome
    if outcome <= Outcome.CHECKED
)


@dataclass(frozen=True)
class Model:
    """A model's parameters; a pair is a range from which an episode draws."""

    eps: float | tuple[float, float]  # factor of the crash rates
    fix: float | tuple[float, float]  # a broken script runs in the next call
    miss: float | tuple[float, float]  # factor of missed files and of schema mismatch
    false_belief: float | tuple[float, float]  # factor
    repair: float | tuple[float, float]  # an upstream tool works in a downstream life
    tunes: int  # by default


# MAPPA (arXiv 2601.23228) for qwen3-4b, DSBench's AutoGen rows (arXiv 2409.07703) for the rest; see the card.
MODELS: dict[str, Model] = {
    "qwen3-4b": Model(1.0, 0.42, 1.0, 1.0, 0.16, 1),
    "qwen3-4b-mappa": Model(1.0, 0.50, 0.7, 0.5, 0.16, 2),
    "gpt-4": Model(0.45, 0.82, 0.38, 0.5, 0.45, 2),
    "gpt-4o": Model(0.7, 0.60, 0.65, 0.7, 0.25, 2),
    "gpt-4o-mini": Model(1.7, 0.25, 1.3, 1.3, 0.10, 1),
    "gpt-3.5": Model(2.3, 0.12, 1.5, 1.5, 0.05, 1),
    "randomised": Model((0.5, 2.0), (0.15, 0.85), (0.4, 1.4), (0.5, 1.4), (0.06, 0.40), 1),
}
EPS = (0.17, 0.27, 0.36)  # write_features, train_model, submit
MISS = (0.04, 0.04, 0.27, 0.05, 0.22)
MISMATCH, FALSE_BELIEF = 0.18, 0.36

WORDS: Mapping[str, str] = {
    "task": (
        "Build a pipeline that ends in a valid submission: X_train, y_train, X_test, then a model, then a submission. "
        "A row is one variant with its own directory; its feature files are looked up in row 0 if it has none. Scripts "
        "crash, and a clean run may leave a file unwritten, sometimes without anybody noticing."
    ),
    "score": (
        "The quality is that of the submission of the row picked by the lead's last aggregate: between 0 and 1, and 0 "
        "without a valid submission. aggregate picks a row by validation score."
    ),
    "lead": "hands out rows, reads returns, picks a row and stops",
    "engineer": "writes X_train, y_train and X_test",
    "modeler": "trains and tunes the model, and gives its validation score",
    "analyst": "writes the submission of the picked row",
    "write_features": "Write the feature files; in a downstream role, a patch that rarely works.",
    "train_model": "Train the model on X_train and y_train; for an analyst, a patch that rarely works.",
    "tune": "Tune the model: a better score, and a small risk of breaking its file unseen.",
    "check_artifacts": "List the files that are really there; may reveal a leaky model.",
    "submit": "Write the submission from X_test and the model.",
}


@pytree
class ScienceParams:
    """Numbers of the laws; tables are looked up by integers so that outcomes are the same on every device."""

    crash: jax.Array  # f32[3,3,64]   log-odds by tool and state of its script: new, clean, broken
    miss: jax.Array  # f32[5,64]     by file
    mismatch: jax.Array  # f32[64]
    false_belief: jax.Array  # f32[64]
    repair: jax.Array  # f32[64]
    odds: jax.Array  # f32[4096]     log-odds of (i + 1/2) / 4096
    kappa: jax.Array  # f32[4]        by level of the note
    base: jax.Array  # f32[1024]     quantiles of the quality base
    hardness: jax.Array  # f32[1024]     of log-odds to crash
    variant: jax.Array  # f32[1024]     of a row's own quality
    noise: jax.Array  # f32[1024]     of a validation score
    gain: jax.Array  # f32[8]        of tunes
    leak: jax.Array  # f32[]
    leak_cost: jax.Array  # f32[]
    leak_score: jax.Array  # f32[]
    loud: jax.Array  # f32[]
    breaks: jax.Array  # f32[]
    reveals: jax.Array  # f32[]
    regression: jax.Array  # f32[]
    load: jax.Array  # f32[]         log-odds to crash of a lone lead
    fill: jax.Array  # f32[]         log-odds per token of context above `calm`
    calm: jax.Array  # f32[]         tokens
    confidence: jax.Array  # int32[2,1024] in 2**-16, wrong and right
    stretch: jax.Array  # int32[1024]   log-normal factor of mean 1 in 2**-10
    tool_ms: jax.Array  # int32[5]
    tokens: jax.Array  # int32[5]
    turn_cap: jax.Array  # int32[]       task calls per hand-out
    context_limit: jax.Array  # int32[]
    planted: jax.Array  # bool[]        X_test is never saved but believed to be, and nothing is patched


@pytree
class Disk:
    """Hidden facts of an episode: what was drawn, and the shared disk. Axis M."""

    base: jax.Array  # f32[]
    hardness: jax.Array  # f32[]
    regression: jax.Array  # bool[]
    skill: jax.Array  # int32[5]     places in the ranges of crash, fix, miss, false belief, repair
    variant: jax.Array  # f32[M]
    files: jax.Array  # int32[M]     bits
    schema: jax.Array  # int32[M]     of X_test, in 2**-16: a mismatch bites below its threshold
    author: jax.Array  # int32[M]     uid of who wrote X_test, -1 none
    tunes: jax.Array  # int32[M]     of the model
    leak: jax.Array  # bool[M]      of the model
    worth: jax.Array  # int32[M]     quality of the submission in 2**-16, 0 if invalid
    valid: jax.Array  # bool[M]      of the submission
    pick: jax.Array  # int32[]      row, -1 none


@pytree
class Hand:
    """Fields per life. Axis N. Bits are of `FILES`."""

    calls: jax.Array  # int32[N]   task calls since the last hand-out
    context: jax.Array  # int32[N]   tokens in the context
    scripts: jax.Array  # int32[N]   two bits per tool of write_features, train_model, submit: new, clean, broken
    saved: jax.Array  # int32[N]   bits believed saved
    missing: jax.Array  # int32[N]   bits known to be missing
    mismatch: jax.Array  # bool[N]    X_test is known not to fit
    tunes: jax.Array  # int32[N]   tried since the last training
    unchecked: jax.Array  # bool[N]    something was written or tuned since the last check
    note: jax.Array  # int32[N]   level of the best schema note received
    leak: jax.Array  # bool[N]    a check has revealed a leak
    pinned: jax.Array  # int32[N]   row of an analyst since its first call, -1 none
    last: jax.Array  # int32[N]   four bits per tool: what came of it, as the caller knows
    outcome: jax.Array  # int32[N]   of the last task call or return, for the artefact log: see `entry`


def science_params(
    model: str,
    *,
    turn_cap: int = 4,
    load: float = 1.0,
    sigma_h: float = 0.6,
    context_limit: int = 24_576,
    planted: bool = False,
) -> ScienceParams:
    """The laws of a model preset as arrays."""
    p = MODELS[model]
    ends = lambda x: np.linspace(x[0], x[1], RANGE) if isinstance(x, tuple) else np.full(RANGE, x)  # noqa: E731
    logit = lambda x: np.log(x) - np.log1p(-x)  # noqa: E731
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    eps = np.minimum(np.asarray(EPS)[:, None] * ends(p.eps), 0.95)
    broken = np.broadcast_to(1 - ends(p.fix), eps.shape)
    normal = np.log(lognormal_table(1.0, median=1.0))
    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    ints = lambda x: jnp.asarray(np.rint(x), jnp.int32)  # noqa: E731
    grain = (np.arange(2**CRASH_BITS) + 0.5) / 2**CRASH_BITS
    return ScienceParams(
        crash=f32(np.stack([logit(eps), logit(eps / 2), logit(broken)], axis=1)),
        miss=f32(np.asarray(MISS)[:, None] * ends(p.miss)),
        mismatch=f32(MISMATCH * ends(p.miss)),
        false_belief=f32(FALSE_BELIEF * ends(p.false_belief)),
        repair=f32(ends(p.repair)),
        odds=f32(logit(grain)),
        kappa=f32(KAPPA),
        base=f32(sigmoid(np.clip(pass_rates(0.42, 4.0), -80, 80))),
        hardness=f32(sigma_h * normal),
        variant=f32(0.08 * normal),
        noise=f32(0.05 * normal),
        gain=f32(0.16 * (1 - 0.6 ** np.arange(GAINS))),
        leak=f32(0.15),
        leak_cost=f32(0.10),
        leak_score=f32(0.20),
        loud=f32(0.6),
        breaks=f32(0.045),
        reveals=f32(0.6),
        regression=f32(0.53),
        load=f32(load),
        fill=f32(0.5 / context_limit),
        calm=f32(0.2 * context_limit),
        confidence=confidence_table(0.6, 0.8),
        stretch=ints(1024 * lognormal_table(0.63, mean=1.0)),
        tool_ms=ints(1000 * np.asarray(TOOL_S)),
        tokens=ints(np.asarray(TOKENS)),
        turn_cap=jnp.int32(turn_cap),
        context_limit=jnp.int32(context_limit),
        planted=jnp.bool_(planted),
    )


def entry(outcome: jax.Array, tool: jax.Array, row: jax.Array, files: jax.Array, wrote: jax.Array) -> jax.Array:
    """int32[N]: a line of the artefact log: outcome (5 bits), tool (3, from 1), files there (5), written (5), row."""
    number = jnp.where(tool >= FIRST_TASK_TOOL, tool - FIRST_TASK_TOOL + 1, 0)
    return outcome | (number << 5) | (files << 8) | (wrote << 13) | (row << 18)


class DataScience:
    """The task; see `ddpomdp.task.Task` for what each method is asked."""

    name = "DataScience-v0"
    roles: tuple[str, ...] = ROLES
    spawnable: tuple[str, ...] = ROLES[1:]
    tools: tuple[Tool, ...] = tuple(Tool(name) for name in TOOLS)
    rules: tuple[str, ...] = RULES
    num_values = byvalue.VALUES
    self_features: tuple[str, ...] = (
        *("row", "context_fill", "calls_made", "calls_left", "regression", *BELIEFS),
        *("mismatch", "tunes", "unchecked", "note", "leak_known", *OUTCOMES),
    )
    claim_features: tuple[str, ...] = ("score", *BELIEFS)
    board_features: tuple[str, ...] = ("score", "leaky", "mismatch", *BELIEFS)
    hands_claims = True
    by_value = True
    notes = len(NOTES)
    words: Mapping[str, str] = WORDS

    def __init__(self, num_rows: int, per_row: int, passes: int, *, alone: bool, tunes: int):
        """Static sizes M, K; `alone`: the lead works itself; `tunes`: of the worker rule."""
        self.num_rows, self.per_row, self.passes = num_rows, per_row, passes
        self.alone, self.tunes = alone, tunes

    # Episode -----------------------------------------------------------------------------------------------------

    def init(self, key: jax.Array, luck: jax.Array, params: ScienceParams) -> Disk:
        """Draw the task from `key`; the disk is empty."""
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        words = luck_.life_key(key, jnp.asarray(luck_.TASK_LINEAGE, jnp.uint32))
        w0, _ = luck_.threefry(*words, row, jnp.uint32(Purpose.ROW))
        t0, t1 = luck_.threefry(*words, jnp.int32(2**16), jnp.uint32(Purpose.ROW))
        zero = jnp.zeros_like(row)
        return Disk(
            base=params.base[luck_.field(t0, 0, 10)],
            hardness=params.hardness[luck_.field(t0, 10, 10)],
            regression=luck_.share(t0, 20, 12) < params.regression,
            skill=jnp.stack([luck_.field(t1, 6 * i, 6) for i in range(5)]),
            variant=params.variant[luck_.field(w0, 0, 10)],
            files=zero,
            schema=zero,
            author=zero - 1,
            tunes=zero,
            leak=zero > 0,
            worth=zero,
            valid=zero > 0,
            pick=jnp.int32(-1),
        )

    def life(self, num_slots: int) -> Hand:
        """A newborn: it believes nothing."""
        zero, no = jnp.zeros(num_slots, jnp.int32), jnp.zeros(num_slots, bool)
        return Hand(
            calls=zero,
            context=zero,
            scripts=zero,
            saved=zero,
            missing=zero,
            mismatch=no,
            tunes=zero,
            unchecked=no,
            note=zero,
            leak=no,
            pinned=zero - 1,
            last=zero,
            outcome=zero,
        )

    def brief(
        self, level: jax.Array, words: tuple[jax.Array, jax.Array], params: ScienceParams
    ) -> tuple[jax.Array, jax.Array]:
        """Every brief is understood."""
        return jnp.ones_like(level, bool), jnp.zeros_like(level, bool)

    def handed(self, life: Hand, handed: jax.Array, understood: jax.Array) -> Hand:
        """New turns; scripts, context and beliefs stay."""
        return replace(life, calls=jnp.where(handed, 0, life.calls), pinned=jnp.where(handed, -1, life.pinned))

    def takes_claims(self, role: jax.Array) -> jax.Array:
        """`hand_over` says what."""
        return role > LEAD

    def hear(self, life: Hand, tokens: jax.Array, mail: jax.Array, params: ScienceParams) -> Hand:
        """Notes that are read fill the context."""
        return replace(life, context=life.context + tokens.astype(jnp.int32))

    def told(self, life: Hand, facts: Disk, log: Log, row: jax.Array, role: jax.Array, received: jax.Array) -> Hand:
        """Beliefs after claims on the own row or row 0: own files said to be missing, others said to be there."""
        row = _row_of(facts, life, role, row)
        saved, missing, mismatch = once(heard, received, log, row)
        own = jnp.asarray(OWN, jnp.int32)[role]
        lost = missing & own
        misfit = mismatch == 2
        is_engineer = role == ENGINEER
        lost = lost | jnp.where(is_engineer & misfit, X_TEST, 0)
        note = life.note
        for level in range(1, self.notes + 1):
            there = jnp.any((received & _places(level - 1, self.per_row, received.shape[-1])) != 0, axis=-1)
            note = jnp.maximum(note, jnp.where(there, level, 0))
        return replace(
            life,
            saved=(life.saved | saved) & ~lost,
            missing=life.missing & ~saved,
            mismatch=jnp.where(is_engineer & misfit, True, life.mismatch & ~(mismatch == 1)),
            note=note,
        )

    def said(self, log: Log) -> jax.Array:
        """Which claims say what of files."""
        return said(log)

    def decided(self, facts: Disk, answer: jax.Array) -> Disk:
        """The row that the root has picked."""
        picked = answer > 0
        return replace(facts, pick=jnp.where(jnp.any(picked), jnp.argmax(picked), -1).astype(jnp.int32))

    # Handing out -------------------------------------------------------------------------------------------------

    def select(
        self,
        facts: Disk,
        log: Log,
        known: jax.Array,
        selector: jax.Array,
        role: jax.Array,
        handed: jax.Array,
        params: ScienceParams,
    ) -> jax.Array:
        """Rows that a selector picks, by the role of the child asked first.

        again: row 0 for an engineer, the picked row for others. missing: the same row if files of the role are known
        to be missing there; for a modeler every row without a score. conflicting: row 0 if X_test is known not to fit.
        """
        _, missing, mismatch, score, _ = read(log, known)
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        engineer = (role == ENGINEER)[:, None]
        target = row == jnp.where(engineer | (facts.pick < 0), 0, facts.pick)
        own = jnp.asarray(OWN, jnp.int32)[role][:, None]
        lacks = target & ((missing & own) != 0)
        lacks = jnp.where((role == MODELER)[:, None], score < 0, lacks)
        misfit = (row == 0) & engineer & jnp.any(mismatch == 2, axis=-1, keepdims=True)
        is_ = lambda name: (selector == SELECTORS.index(name))[:, None]  # noqa: E731
        return handed & jnp.where(is_("missing"), lacks, jnp.where(is_("conflicting"), misfit, is_("again") & target))

    def hand_over(
        self,
        log: Log,
        masks: ValueMasks,
        parent: jax.Array,
        rows: jax.Array,
        uid: jax.Array,
        role: jax.Array,
        level: jax.Array,
    ) -> jax.Array:
        """A detailed brief is a standard note on the rows; claims come by message."""
        words = byvalue.row_words(rows, log.per_row)
        note = _places(0, log.per_row, words.shape[-1]) | _places(1, log.per_row, words.shape[-1])
        return jnp.where(((level == 2) & (role > LEAD))[:, None], words & note, jnp.uint32(0))

    # Turns -------------------------------------------------------------------------------------------------------

    def legal(
        self, life: Hand, role: jax.Array, has_row: jax.Array, num_claims: jax.Array, params: ScienceParams
    ) -> list[jax.Array]:
        """Each role its own tools and, to patch, those upstream; a lone lead all of them; until the cap of turns."""
        may = has_row & (life.context < params.context_limit) & (life.calls < params.turn_cap)
        lone = (role == LEAD) & self.alone
        worker = role > LEAD
        return [
            may & (worker | lone),
            may & ((role == MODELER) | (role == ANALYST) | lone),
            may & ((role == MODELER) | lone),
            may & (worker | lone),
            may & ((role == ANALYST) | lone),
        ]

    def claim_bound(self, role: jax.Array, num_claims: jax.Array) -> jax.Array:
        """No tool names a claim."""
        return jnp.zeros_like(role)

    def cost(self, tool: jax.Array, params: ScienceParams) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One critical step each; tokens and time are told by `act`."""
        steps = jnp.where(tool >= FIRST_TASK_TOOL, 1000, 0)
        return jnp.zeros_like(tool), steps, jnp.zeros_like(tool, bool)

    def act(self, facts: Disk, life: Hand, working: Working, log: Log, params: ScienceParams) -> Worked:
        """One task turn of everyone who takes one; all read the disk as it was at the start of the tick."""
        tool, role, uid = working.tool, working.role, working.uid
        calls = (tool >= FIRST_TASK_TOOL) & working.has_row
        index = jnp.where(calls, tool - FIRST_TASK_TOOL, 0)
        works = calls & (tool != CHECK)
        writing, training, tuning = works & (tool == WRITE), works & (tool == TRAIN), works & (tool == TUNE)
        submitting, checking = works & (tool == SUBMIT), calls & (tool == CHECK)
        (w0, w1), (o0, o1) = once(luck_.draws, working.life_keys, working.turn, (Purpose.WORK, Purpose.OUTCOME))
        row = _row_of(facts, life, role, working.row)
        own, shared = facts.files[row], facts.files[0] & FEATURES
        there = own | shared
        of_test = jnp.where((own & X_TEST) != 0, row, 0)  # whose X_test is read
        skill = facts.skill
        lone = (role == LEAD) & self.alone
        kappa = params.kappa[jnp.where(lone, jnp.maximum(life.note, STANDARD), life.note)]

        # Whether the script runs.
        needed = jnp.asarray(NEEDS, jnp.int32)[index]
        lacking = jnp.where(works, needed & ~there, 0)
        not_found = works & (lacking != 0)
        goes = works & ~not_found
        patching = goes & ((writing & (role > ENGINEER)) | (training & (role == ANALYST)))
        patched = patching & (luck_.share(w0, 0, 16) < params.repair[skill[4]]) & ~params.planted
        runs = goes & ~patching & ~tuning
        script = jnp.where(submitting, 2, jnp.where(training, 1, 0))
        state = (life.scripts >> (2 * script)) & 3
        rates = jnp.stack([params.crash[:, 0, skill[0]], params.crash[:, 1, skill[0]], params.crash[:, 2, skill[1]]], 1)
        strain = params.fill * jnp.maximum(life.context.astype(jnp.float32) - params.calm, 0.0)
        odds = rates[script, state] + facts.hardness + strain + jnp.where(lone, params.load, 0.0)
        crashes = runs & (params.odds[luck_.field(w0, 0, CRASH_BITS)] < odds)
        clean = runs & ~crashes

        # Schema: does X_test fit the model?
        knows = jnp.where(facts.author[of_test] == uid, jnp.minimum(kappa, params.kappa[STANDARD]), kappa)
        edge = params.mismatch[skill[2]] * knows
        misfit = clean & submitting & (facts.schema[of_test].astype(jnp.float32) * jnp.float32(2.0**-16) < edge)
        loud = misfit & (luck_.share(w1, 16, 16) < params.loud)
        clean = clean & ~loud

        # What is written.
        outputs = jnp.where(works, jnp.asarray(WRITES, jnp.int32)[index], 0)
        rewrites = writing & life.mismatch
        open_ = outputs & ~jnp.where(writing, there, own)
        open_ = open_ | jnp.where(rewrites, X_TEST, 0)
        first, second = luck_.share(w0, 16, 16), luck_.share(w1, 0, 16)
        third = luck_.share(w1, 16, 16)
        missed = jnp.zeros_like(tool)
        for bit, u in enumerate((first, second, third, first, first)):
            miss = u < params.miss[bit, skill[2]] * kappa
            missed = missed | jnp.where(miss | ((bit == 2) & params.planted), 1 << bit, 0)
        wrote = jnp.where(clean, open_ & ~missed, jnp.where(patched, open_, 0))
        cleared = jnp.where(clean & rewrites, X_TEST, 0)
        broke = goes & tuning & (first < params.breaks)
        tuned = goes & tuning & ~broke
        cleared = cleared | jnp.where(broke, MODEL, 0)
        after = (own & ~cleared) | wrote
        incomplete = clean & ((open_ & missed) != 0)
        trusting = (luck_.share(o0, 16, 16) < params.false_belief[skill[3]]) | params.planted
        fooled = incomplete & trusting

        # Models, scores, submissions.
        new_model = (wrote & MODEL) != 0
        fits = (clean | patched) & training & ((open_ & MODEL) != 0)
        leaks = jnp.where(fits, luck_.share(o1, 20, 12) < params.leak, facts.leak[row])
        depth = jnp.where(fits, 0, facts.tunes[row] + (tuned | broke))
        worth = facts.base + facts.variant[row] - jnp.where(leaks, params.leak_cost, 0.0)
        worth = worth + params.gain[jnp.minimum(depth, GAINS - 1)]
        score = worth + jnp.where(leaks, params.leak_score, 0.0) + params.noise[luck_.field(o1, 0, 10)]
        score = jnp.rint(100.0 * jnp.clip(score, 0.0, 1.0)).astype(jnp.int32)
        submitted = (wrote & SUBMISSION) != 0
        value = jnp.floor(jnp.clip(worth, 0.0, 1.0) * 2.0**16).astype(jnp.int32)
        reveals = checking & leaks & ((there & MODEL) != 0) & (luck_.share(w0, 0, 16) < params.reveals)

        # What the caller believes.
        truth = after | shared
        ran = clean | patched
        saved = life.saved | jnp.where(ran, outputs | needed, 0)
        saved = saved & ~jnp.where(incomplete & ~fooled, open_ & missed, 0) & ~lacking
        missing = (life.missing & ~jnp.where(ran, outputs, 0)) | lacking
        saved = jnp.where(checking, truth, saved)
        missing = jnp.where(checking, EVERY & ~truth, missing)
        mismatch = (life.mismatch & ~(writing & ran)) | loud
        known_leak = (life.leak & ~(ran & training)) | reveals

        # What the log has of it.
        outcome = jnp.where(clean, Outcome.SAVED, Outcome.NONE)
        for flags, kind in (
            (incomplete, Outcome.INCOMPLETE),
            (fooled, Outcome.FALSE_BELIEF),
            (crashes, Outcome.CRASH),
            (not_found, Outcome.NOT_FOUND),
            (loud, Outcome.SCHEMA_ERROR),
            (patched, Outcome.PATCHED),
            (patching & ~patched, Outcome.NOT_PATCHED),
            (tuned, Outcome.TUNED),
            (broke, Outcome.BROKE),
            (checking, Outcome.CHECKED),
        ):
            outcome = jnp.where(flags, kind, outcome)
        seen = jnp.asarray(_SEEN, jnp.int32)[outcome]
        last = (life.last & ~(15 << (4 * index))) | (seen << (4 * index))
        returns = self._returned(facts, life, working, row, params)
        outcome = jnp.where(tool == RETURN, returns, outcome)

        # Claims: whatever tells more than a crash.
        scored = (training & ran) | (goes & tuning)
        told = ran | tuned | broke | not_found | loud | checking
        kind = jnp.where(scored, jnp.where(training, TRAINED, TUNED), SAVED_FILES)
        kind = jnp.where(reveals, LEAKY, kind)
        payload = jnp.where(
            scored,
            saved | (score << 5) | (jnp.minimum(depth, 7) << 12),
            saved | (missing << 5) | (mismatch.astype(jnp.int32) << 10),
        )
        right = jnp.where(scored, ~leaks, (saved & ~truth) == 0)
        confidence = params.confidence[right.astype(jnp.int32), luck_.field(o1, 10, 10)]
        code = jnp.where(ran | tuned | broke, ResultCode.FOUND, ResultCode.NOTHING)
        code = jnp.where((incomplete & ~fooled) | (patching & ~patched), ResultCode.EMPTY, code)
        code = jnp.where(crashes, ResultCode.FAULT, code)
        code = jnp.where(not_found, ResultCode.REFUSED, code)
        code = jnp.where(loud | reveals, ResultCode.REJECTED, code)
        code = jnp.where(checking & ~reveals, ResultCode.ACCEPTED, code)
        useful = jnp.where((ran & ~(incomplete & ~fooled)) | tuned | broke | checking, 1.0, 0.0)
        useful = useful - jnp.where(crashes | not_found | loud, 1.0, 0.0)
        complete = (ran & ~incomplete & ~misfit) | tuned
        # A check is a verdict on the model: leaky or not.
        verdict = jnp.where(checking & ((there & MODEL) != 0), jnp.where(reveals == leaks, 1.0, -1.0), 0.0)
        new_state = jnp.where(crashes, 2, 1)
        scripts = jnp.where(runs, (life.scripts & ~(3 << (2 * script))) | (new_state << (2 * script)), life.scripts)
        stretched = (params.tool_ms[index] * params.stretch[luck_.field(o0, 0, 10)]) >> 10
        schema = jnp.where(rewrites & patched, 2**16 - 1, luck_.field(o0, 0, 16))
        wrote_test = (wrote & X_TEST) != 0
        tokens = jnp.where(calls, params.tokens[index], 0)
        return Worked(
            life=Hand(
                calls=life.calls + calls,
                context=life.context + jnp.where(calls, jnp.asarray(CONTEXT, jnp.int32)[index], 0),
                scripts=scripts,
                saved=jnp.where(calls, saved, life.saved),
                missing=jnp.where(calls, missing, life.missing),
                mismatch=jnp.where(calls, mismatch, life.mismatch),
                tunes=jnp.where(ran & training, 0, life.tunes + (goes & tuning)),
                unchecked=(life.unchecked | ran | tuned | broke) & ~checking,
                note=life.note,
                leak=known_leak,
                pinned=jnp.where(calls & (role == ANALYST), row, life.pinned),
                last=jnp.where(calls, last, life.last),
                outcome=jnp.where(
                    calls | (tool == RETURN),
                    entry(outcome, jnp.where(calls, tool, 0), row, truth, wrote),
                    life.outcome,
                ),
            ),
            claims=NewClaims(
                made=told,
                row=row,
                value=kind,
                confidence=confidence,
                luck=payload.astype(jnp.uint32) << jnp.uint32(16),
                flags=jnp.zeros_like(tool),
                twin=jnp.zeros_like(told),
                twin_value=jnp.zeros_like(tool),
            ),
            advance=jnp.zeros_like(told),
            code=code,
            value=jnp.where(told, kind, -1),
            useful=useful,
            role=jnp.where(complete, 1.0, jnp.where(ran | broke, -1.0, 0.0)),
            verdict=verdict,
            effort=Effort(
                tokens=tokens,
                tool_tokens=jnp.zeros_like(tool),
                outside=jnp.zeros_like(told),
                tool_ms=jnp.where(calls, stretched, 0),
            ),
            facts=once(
                _saved,
                facts,
                uid,
                row,
                wrote,
                cleared,
                Written(
                    test=wrote_test,
                    schema=schema,
                    model=new_model,
                    leak=leaks,
                    tuned=tuned,
                    submitted=submitted,
                    worth=jnp.where(misfit, 0, value),
                    valid=~misfit,
                ),
            ),
            learns=jnp.where(
                wrote_test[:, None],
                _in_row(row, self.notes, self.per_row, working.known.shape[-1]),
                jnp.uint32(0),
            ),
        )

    def _returned(self, facts: Disk, life: Hand, working: Working, row: jax.Array, params: ScienceParams) -> jax.Array:
        """int32[N]: what a return would be worth in the artefact log."""
        own = jnp.asarray(OWN, jnp.int32)[working.role]
        inputs = jnp.asarray(INPUTS, jnp.int32)[working.role]
        believes = (own & ~life.saved) == 0
        complete = (own & ~(facts.files[row] | (facts.files[0] & FEATURES))) == 0
        victim = ((life.missing & inputs) != 0) | (life.mismatch & (working.role == ANALYST))
        out = jnp.where(victim, Outcome.RETURN_CAP_VICTIM, Outcome.RETURN_CAP)
        out = jnp.where(life.calls < params.turn_cap, Outcome.RETURN_NAMING, out)
        return jnp.where(believes, jnp.where(complete, Outcome.RETURN_COMPLETE, Outcome.RETURN_FALSE), out)

    # Answers -----------------------------------------------------------------------------------------------------

    def aggregate(
        self, facts: Disk, log_facts: Log, votes: ValueVotes, rule: jax.Array, params: ScienceParams
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Pick a row by the newest scores known: the row handed out last, the highest score, or that without a leak.

        The answer of the picked row is 1 + 2 * its submission's quality in 2**-16, so that it is what it was when read.
        """
        place = jnp.maximum(votes.latest[..., TRAINED], votes.latest[..., TUNED])
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        score = (_payload(log_facts)[row, jnp.maximum(place, 0)] >> 5) & 127
        leaky = votes.latest[..., LEAKY] > votes.latest[..., TRAINED]
        is_rule = lambda name: (rule == RULES.index(name))[:, None]  # noqa: E731
        points = jnp.where(is_rule("last"), row, score)
        some = (place >= 0) & ~(is_rule("verdict") & leaky)
        top = jnp.argmax(jnp.where(some, points, -1), axis=-1)
        picked = some & (row == top[:, None])
        answer = jnp.where(picked, 1 + 2 * facts.worth, 0).astype(jnp.int32)
        return answer, jnp.where(picked, place, -1), jnp.zeros_like(answer)

    def quality(self, facts: Disk, answer: jax.Array) -> jax.Array:
        """Quality of the picked row's submission."""
        return jnp.sum(answer >> 1).astype(jnp.float32) * jnp.float32(2.0**-16)

    def gains(self, facts: Disk, old: jax.Array, new: jax.Array) -> jax.Array:
        """Each row's change of quality."""
        return ((new >> 1) - (old >> 1)).astype(jnp.float32) * jnp.float32(2.0**-16)

    def best_quality(self, facts: Disk, values: jax.Array, told: jax.Array) -> jax.Array:
        """Quality of the best submission of the rows whose score was told bool[M, K]."""
        scored = jnp.any(told & ((values == TRAINED) | (values == TUNED)), axis=-1)
        return jnp.max(jnp.where(scored, facts.worth, 0)).astype(jnp.float32) * jnp.float32(2.0**-16)

    def artefacts(self, life: Hand) -> jax.Array:
        """int32[N]: the artefact log's line on each life's last task call or return, for a coach."""
        return life.outcome

    def coach(self, **options: Any) -> Any:
        """The rubric; options are its fields."""
        from ddpomdp_envs.datascience_coach import Rubric  # it reads the laws of this module

        return Rubric(**options)

    def resolved(self, facts: Disk, board: Any, answer: jax.Array) -> jax.Array:
        """The picked row, if the root knows scores of several and its submission is worth something."""
        several = jnp.sum(board.extra[0] >= 0) > 1
        return several & ((answer >> 1) > 0)

    def info(self, facts: Disk, answer: jax.Array) -> dict[str, jax.Array]:
        """success (a valid submission of the pick), its files, and the metric of the task's type."""
        picked, quality = answer > 0, self.quality(facts, answer)
        pick = jnp.where(jnp.any(picked), jnp.argmax(picked), 0)
        files = facts.files[pick] | (facts.files[0] & FEATURES)
        written = jnp.any(picked) & ((files & SUBMISSION) != 0)
        success = written & facts.valid[pick]
        short = 1.0 - quality
        accuracy = jnp.where(success, 0.50 + 0.42 * quality, 0.50)
        rmse = jnp.where(success, 8.0 + 45.0 * short * short, 50.0)
        return {
            "success": success.astype(jnp.float32),
            "submitted": written.astype(jnp.float32),
            "regression": facts.regression.astype(jnp.float32),
            "metric": jnp.where(facts.regression, rmse, accuracy),
            "files": files,
            "pick": jnp.where(jnp.any(picked), pick, -1).astype(jnp.int32),
        }

    # Agents ------------------------------------------------------------------------------------------------------

    def see(
        self, facts: Disk, life: Hand, row: jax.Array, has_row: jax.Array, params: ScienceParams
    ) -> list[jax.Array | Fields]:
        """Row, context, turns left, the task's type, beliefs, and what came of the own tools."""
        f = lambda x: x.astype(jnp.float32)  # noqa: E731
        row = jnp.where(life.pinned >= 0, life.pinned, row)
        return [
            jnp.where(has_row, f(row) / self.num_rows, -1.0),
            f(life.context) / f(params.context_limit),
            f(life.calls),
            f(jnp.maximum(params.turn_cap - life.calls, 0)),
            f(jnp.broadcast_to(facts.regression, row.shape)),
            Fields(life.saved | (life.missing << len(FILES)), 1, len(BELIEFS)),
            *map(f, (life.mismatch, life.tunes, life.unchecked, life.note, life.leak)),
            Fields(life.last, 4, len(OUTCOMES)),
        ]

    def observe(self, life: Hand, params: ScienceParams) -> list[jax.Array]:
        """`see` is asked instead."""
        raise NotImplementedError("DataScience-v0 shows what its lives see of their rows: see()")

    def observe_claims(
        self, log: Log, known: jax.Array, place: jax.Array, params: ScienceParams
    ) -> list[jax.Array | Fields]:
        """Score (-1: none), and what the claim says of each file."""
        row, k = row_and_k(place, self.per_row)
        payload = (log.fixed[k, row] >> jnp.uint32(16)).astype(jnp.int32)
        kind = log.head[k, row] & 15
        scored = (kind == TRAINED) | (kind == TUNED)
        score = jnp.where(scored, ((payload >> 5) & 127).astype(jnp.float32) / 100, -1.0)
        files = payload & jnp.where(scored, EVERY, 2 ** len(BELIEFS) - 1)
        return [score, Fields(files, 1, len(BELIEFS))]

    def observe_board(self, facts: Disk, log: Log, known: jax.Array, params: ScienceParams) -> list[jax.Array]:
        """Newest score (-1: none), a leak revealed since the last training, mismatch, files, by known claims."""
        saved, missing, mismatch, score, leaky = read(log, known)
        shown = jnp.where(score >= 0, score.astype(jnp.float32) / 100, -1.0)
        return [shown, leaky, mismatch == 2, *_bits(saved), *_bits(missing)]

    def worker_turn(self, harness: Any, legal: Legal) -> jax.Array:
        """`worker_sees` is asked instead."""
        raise NotImplementedError("DataScience-v0's workers heed what they believe: worker_sees()")

    def worker_sees(self, harness: Any, legal: Legal, own: jax.Array) -> jax.Array:
        """The untrained rule: no check, no look, tunes of the model, patches, returns a bare list."""
        return work_rule(self, harness, legal, own, Habits(tunes=jnp.int32(self.tunes)))


@pytree
class Habits:
    """How scripted workers work: numbers, so that all such scripts are one program."""

    tunes: jax.Array  # int32[]
    check: Any = False  # bool[]   check_artifacts after writing
    look: Any = False  # bool[]   check_artifacts first, but engineers
    hand_back: Any = False  # bool[]   return at a missing file instead of patching
    detail: Any = 0  # int32[]  of the return


def work_rule(task: DataScience, harness: Any, legal: Legal, own: jax.Array, habits: Habits) -> jax.Array:
    """int32[N, 1+A]: a worker's turn, by its role's tools and what it believes f32[N, F] (`self_features`).

    1. look; 2. patch what was not found, or hand back; 3. the own tool while an output is not believed saved; 4. tune;
    5. check; 6. return all.
    """
    said = jnp.asarray(harness.turn("return", claims="all"))
    said = said.at[2].set(jnp.asarray(habits.detail, jnp.int32))
    return once(partial(_called, width=1 + harness.num_args), _wanted(task, legal, own, habits), said)


def _called(tool: jax.Array, said: jax.Array, *, width: int) -> jax.Array:
    """int32[N, width]: turns with a tool int32[N] and no arguments, and returns as `said`."""
    turns = jnp.zeros((tool.shape[0], width), jnp.int32).at[:, 0].set(tool)
    return jnp.where((tool == RETURN)[:, None], said, turns)


def _wanted(task: DataScience, legal: Legal, own: jax.Array, habits: Habits) -> jax.Array:
    """int32[N]: the tool of `work_rule`."""
    see = lambda name: own[:, task.self_features.index(name)]  # noqa: E731
    may = lambda tool: (legal.tools >> tool) & 1 == 1  # noqa: E731
    bits = lambda state: sum(  # noqa: E731
        (see(f"{state}_{name}") > 0).astype(jnp.int32) << i for i, name in enumerate(FILES)
    )
    saved, missing, misfit = bits("saved"), bits("missing"), see("mismatch") > 0
    # Roles by their tools: `tune` is a modeler's, `submit` an analyst's, both a lone lead's.
    models, submits = may(TUNE), may(SUBMIT)
    lone, works = models & submits, may(CHECK)
    modeler, analyst = models & ~submits, submits & ~models
    engineer = works & ~models & ~submits
    tunes, habits_tunes = see("tunes"), jnp.asarray(habits.tunes)
    lacks = lambda files: (files & ~saved) != 0  # noqa: E731
    want = jnp.full_like(missing, RETURN)
    set_ = lambda flags, tool: jnp.where(flags, tool, want)  # noqa: E731
    want = set_(jnp.asarray(habits.check) & works & (see("unchecked") > 0), CHECK)
    want = set_((modeler | lone) & (tunes < habits_tunes), TUNE)
    want = set_((modeler | lone) & lacks(MODEL), TRAIN)
    want = set_(engineer & lacks(FEATURES), WRITE)
    want = set_(analyst & lacks(SUBMISSION), SUBMIT)
    done = ~lacks(MODEL) & ~lacks(FEATURES) & ~misfit & (tunes >= habits_tunes)
    want = set_(lone & done & lacks(SUBMISSION), SUBMIT)
    want = set_(lone & (lacks(FEATURES) | misfit), WRITE)
    # What stops a worker: inputs that were not found, or an X_test that does not fit.
    model_gone = analyst & ((missing & MODEL) != 0)
    test_gone = analyst & (((missing & X_TEST) != 0) | misfit)
    train_gone = (modeler | model_gone) & ((missing & (X_TRAIN | Y_TRAIN)) != 0)
    stuck = model_gone | test_gone | train_gone
    want = set_(stuck, TRAIN)
    want = set_(test_gone | train_gone, WRITE)
    want = set_(stuck & jnp.asarray(habits.hand_back), RETURN)
    want = set_(jnp.asarray(habits.look) & (modeler | analyst) & (see("calls_made") == 0), CHECK)
    want = jnp.where((want >= FIRST_TASK_TOOL) & ((legal.tools >> want) & 1 == 0), RETURN, want)
    return jnp.where((want == RETURN) & ~may(RETURN), 0, want)


# Disk and claims ----------------------------------------------------------------------------------------------------


@pytree
class Written:
    """What a tick's calls write. Axis N slot."""

    test: jax.Array  # bool[N]
    schema: jax.Array  # int32[N]
    model: jax.Array  # bool[N]
    leak: jax.Array  # bool[N]
    tuned: jax.Array  # bool[N]
    submitted: jax.Array  # bool[N]
    worth: jax.Array  # int32[N]
    valid: jax.Array  # bool[N]


def _saved(facts: Disk, uid: jax.Array, row: jax.Array, wrote: jax.Array, cleared: jax.Array, new: Written) -> Disk:
    """The disk after a tick: files add up; of several who write one file, the lowest uid's counts."""
    here = row[:, None] == jnp.arange(facts.files.shape[0])  # [N, M]

    def of(flags: jax.Array) -> tuple[jax.Array, Any]:
        who = jnp.where(here & flags[:, None], uid[:, None], 2**30)
        first = jnp.argmin(who, axis=0)
        some = jnp.any(here & flags[:, None], axis=0)
        return some, lambda value, old: jnp.where(some, value[first], old)

    _, test = of(new.test)
    modelled, model = of(new.model)
    tuned, _ = of(new.tuned)
    _, submission = of(new.submitted)
    every = lambda files: union(jnp.where(here, files[:, None].astype(jnp.uint32), 0)).astype(jnp.int32)  # noqa: E731
    return replace(
        facts,
        files=(facts.files & ~every(cleared)) | every(wrote),
        schema=test(new.schema, facts.schema),
        author=test(uid, facts.author),
        tunes=jnp.where(modelled, 0, facts.tunes + tuned),
        leak=model(new.leak, facts.leak),
        worth=submission(new.worth, facts.worth),
        valid=submission(new.valid, facts.valid),
    )


def _row_of(facts: Disk, life: Hand, role: jax.Array, row: jax.Array) -> jax.Array:
    """int32[N]: the row a life works on: an analyst on the pick of its first call, others at their cursor."""
    picked = jnp.where(facts.pick >= 0, facts.pick, row)
    picked = jnp.where(life.pinned >= 0, life.pinned, picked)
    return jnp.where(role == ANALYST, picked, row)


def _payload(log: Log) -> jax.Array:
    """int32[M, K]: sixteen bits per entry."""
    return byvalue.payload(log)


def _places(k: int, per_row: int, words: int) -> jax.Array:
    """uint32[W]: place k of every row."""
    bits = [1 << bit for bit in range(32) if bit % per_row == k] if per_row <= 32 else [1 << k]
    every = jnp.uint32(sum(bits))
    if per_row <= 32:
        return jnp.full(words, every, jnp.uint32)
    return jnp.where(jnp.arange(words) % (per_row // 32) == 0, every, jnp.uint32(0))


def _in_row(row: jax.Array, count: int, per_row: int, words: int) -> jax.Array:
    """uint32[N, W]: the first `count` places of rows int32[N]."""
    place = row * per_row
    bits = jnp.uint32(2**count - 1) << (place & 31).astype(jnp.uint32)
    return jnp.where(jnp.arange(words) == (place >> 5)[:, None], bits[:, None], jnp.uint32(0))


def _bits(files: jax.Array) -> list[jax.Array]:
    """f32[...] per file."""
    return [((files >> i) & 1).astype(jnp.float32) for i in range(len(FILES))]
