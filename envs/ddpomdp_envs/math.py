"""Math-v0: solvers, executors and verifiers answer competition problems (MAPPA MathChat, Dr. MAS, sampling and voting).

Laws, presets and sources stand in the card, cards/math.md. Quality is the share of problems answered right.

Axis letters: N slot, P parent place, M row (problem), K claim of a row, V value, W words of a claim set.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import byvalue
from ddpomdp import claims as claims_
from ddpomdp import luck as luck_
from ddpomdp.byvalue import ValueMasks, ValueVotes
from ddpomdp.claims import ACCEPT, VERDICT, Log, NewClaims
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, SELECTORS, Argument, Legal, Tool
from ddpomdp.luck import Purpose
from ddpomdp.params import TABLE, confidence_table, lognormal_table
from ddpomdp.pytree import Fields, once, pytree, replace, where_needed
from ddpomdp.task import Effort, Worked, Working

ROLES = ("lead", "solver", "executor", "verifier")
LEAD, SOLVER, EXECUTOR, VERIFIER = range(len(ROLES))
SOLVE, RUN, VERIFY = range(FIRST_TASK_TOOL, FIRST_TASK_TOOL + 3)
RULES = ("majority", "verdict", "best", "last")
CHECKED = ("verdict", "best")  # those that heed checks
EFFORTS = ("low", "medium", "high")
NUM_VALUES = 8
CONTEXT_CLAIMS = 4  # claims of others that a solver has in mind
RUN_SAME, RUN_CHANGED = 2, 3  # what a code run said of the claim it was made on; 0: no run
SOLUTION_TOKENS, NOTE_TOKENS = 1_000, 100  # of the own context: a solution, a verdict or a run


@dataclass(frozen=True)
class Model:
    """A model's parameters, fitted to its published votes on one set of problems."""

    mean: float  # m      of the problems' pass rates
    spread: float  # s      p ~ Beta(m s, (1 - m) s)
    modal: float  # w      share of wrong answers that hold wrong value 1
    loop: float  # u      share of failures without an answer
    tokens: float  # mu     mean length of a right answer to the easiest problem
    wrong_length: float  # r      wrong answers are longer by this factor
    hard_length: float  # A      the hardest problem's solutions are longer by this factor
    cap: int  # natural cap of a solution's length
    grade: str  # class of generator: how hard its errors are to see
    confidence: float  # bias of the stated confidence


# Votes: DeepSeek-R1's model cards (2025-01) for r1-1.5b and r1-7b, Think@n (2026) for qwen3-4b; see the card.
MODELS: dict[str, Model] = {
    "r1-1.5b": Model(0.289, 0.8, 0.3, 0.7, 4_300, 1.5, 3.0, 32_768, "weak", 0.4),
    "r1-7b": Model(0.555, 2.0, 0.3, 0.3, 5_000, 1.8, 3.0, 32_768, "mid", 1.0),
    "qwen3-4b": Model(0.863, 0.8, 0.3, 0.0, 16_300, 1.5, 2.0, 81_920, "strong", 2.0),
    "qwen3-4b-aime25": Model(0.812, 0.3, 0.3, 0.0, 16_900, 1.5, 2.0, 81_920, "strong", 2.0),
}
# Verifiers by the class of generator: right accepted with sigmoid(a + b logit p), wrong rejected with
# sigmoid(logit t + e logit p); (a, b, t, e).
VERIFIERS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "small": {"weak": (1.54, 0.58, 0.62, -0.05), "mid": (1.83, 0.44, 0.56, -0.07), "strong": (2.11, 0.30, 0.20, -0.03)},
    "strong": {
        "weak": (1.65, 0.81, 0.82, 0.0),
        "mid": (1.81, 0.735, 0.74, -0.04),
        "strong": (1.97, 0.66, 0.335, -0.12),
    },
}
EFFORT_LOGITS, EFFORT_SHIFTS = (-1.2, -0.4, 0.0), (2, 1, 0)  # lengths x 1/4, 1/2, 1
SHORTEST_CAP = 4_096

WORDS: Mapping[str, str] = {
    "task": (
        f"Answer problems. Each has one right answer, a label from 0 to {NUM_VALUES - 1}. A solver may find the right "
        "one, a wrong one, or none within its length limit; answers that several solvers find independently of each "
        "other are more often right. The queue lists all problems several times: a second pass is a second sample."
    ),
    "score": (
        "The quality of the answer is the share of problems answered right. The answer is the lead's last aggregate; "
        "without one it is empty and the quality 0."
    ),
    "lead": "hands out problems, reads returns, chooses the answers and stops",
    "solver": "writes one whole solution per problem handed to it and returns the answers",
    "executor": "runs code on the newest claim of each problem handed to it",
    "verifier": "judges the claims on the problems handed to it and returns its verdicts",
    "solve": "Write one solution to the next problem of your own.",
    "solve.effort": "How long to think: low is short and cheap, high is long.",
    "run_code": "Check one of the claims you know by a program; it may fail, confirm the claim or make another.",
    "run_code.claim": "Which of your newest claims, 0 the newest.",
    "verify": "Judge one of the claims you know.",
    "verify.claim": "Which of your newest claims, 0 the newest.",
}


@pytree
class MathParams:
    """Numbers of the laws; tables are looked up by integers so that outcomes are the same on every device."""

    chance: jax.Array  # f32[3,1024]  right, by effort and difficulty (quantiles of p, hardest first)
    loop: jax.Array  # f32[]
    wrong: jax.Array  # f32[7]       upper ends of the wrong values' shares
    length: jax.Array  # int32[1024]  mean tokens of a right solution, by difficulty
    wrong_length: jax.Array  # int32[]      in 2**-8
    stretch: jax.Array  # int32[1024]  log-normal factor of mean 1 in 2**-10, by ten random bits
    cap: jax.Array  # int32[3]     longest solution, by effort
    flat_tokens: jax.Array  # int32[]      what every sample costs instead; 0: its length
    confidence: jax.Array  # int32[2,1024] in 2**-16, wrong and right, by ten random bits
    copy: jax.Array  # f32[2,5]     chance to copy, by detail and number of claims of others
    anchor: jax.Array  # f32[]        the same answer again after a rejection
    computable: jax.Array  # f32[]
    cue: jax.Array  # f32[]        the cue is right
    fails: jax.Array  # f32[2]       a run fails: first, right after a failure
    fixes: jax.Array  # f32[]        a clean run is right where the problem is computable
    misformalised: jax.Array  # f32[]        a clean run is wrong where it is not
    accept: jax.Array  # f32[1024]    right claims accepted, by difficulty
    reject: jax.Array  # f32[1024]    wrong claims rejected
    correlation: jax.Array  # f32[]        chance to use the problem's common luck for a verdict
    fault: jax.Array  # f32[]        a turn is lost, at low provider load
    provider_limit: jax.Array  # f32[]
    verify_tokens: jax.Array  # int32[]
    run_tokens: jax.Array  # int32[2]     written, of the tool
    context_limit: jax.Array  # int32[]


@pytree
class Problems:
    """Hidden facts of an episode. Axis M."""

    truth: jax.Array  # int32[M]
    labels: jax.Array  # uint32[M]    what value i is called: nibble i; 0 is right
    packed: jax.Array  # int32[M]    difficulty (10 bits), computable, cue, common luck (16)
    tie: jax.Array  # uint32[M]

    def at(self, row: jax.Array) -> "Problem":
        """What those meet who work on rows int32[N]."""
        word = self.packed[row]
        return Problem(
            truth=self.truth[row],
            labels=self.labels[row],
            difficulty=luck_.field(word, 0, 10),
            computable=luck_.field(word, 10, 1) == 1,
            common=luck_.share(word, 12, 16),
        )

    @property
    def cue(self) -> jax.Array:
        """bool[M]: the problem looks computable."""
        return luck_.field(self.packed, 11, 1) == 1


@pytree
class Problem:
    """One problem per life. Axis N."""

    truth: jax.Array  # int32[N]
    labels: jax.Array  # uint32[N]
    difficulty: jax.Array  # int32[N]   place in the table of pass rates, 0 the hardest
    computable: jax.Array  # bool[N]
    common: jax.Array  # f32[N]

    def label(self, kind: jax.Array) -> jax.Array:
        """int32[N]: what value `kind` (0 right, 1.. wrong) is called."""
        return luck_.field(self.labels >> (4 * kind).astype(jnp.uint32), 0, 4)


@pytree
class Worker:
    """Fields per life. Axis N."""

    solves: jax.Array  # int32[N]   solve turns so far
    context: jax.Array  # int32[N]   tokens in the context
    detailed: jax.Array  # bool[N]    claims of others are known as solutions, not as answers only
    failed: jax.Array  # bool[N]    the last run on the row failed


def pass_rates(mean: float, spread: float) -> np.ndarray:
    """f64[1024]: logits of quantiles of Beta(mean spread, (1 - mean) spread) at (i + 1/2) / 1024.

    By the trapezoid rule over the logit z, where the density p^a (1 - p)^b has no singularity.
    """
    z = np.linspace(-400.0, 400.0, 800_001)
    log_p, log_q = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
    density = np.exp(mean * spread * log_p + (1 - mean) * spread * log_q)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp((np.arange(TABLE) + 0.5) / TABLE, mass / mass[-1], z)


def wrong_shares(modal: float, values: int) -> np.ndarray:
    """f64[values - 1]: shares of the wrong values: `modal`, then the rest by 2^-k."""
    tail = 0.5 ** np.arange(1, values - 1)
    return np.concatenate([[modal], (1 - modal) * tail / tail.sum()])


def math_params(
    model: str,
    verifier: str,
    *,
    num_values: int = NUM_VALUES,
    length_cap: int | None = None,
    flat_tokens: int = 0,
    correlation: float = 0.0,
    fault: float = 0.07,
    context_limit: int = 24_576,
) -> MathParams:
    """The laws of a model preset as arrays."""
    p = MODELS[model]
    logit = pass_rates(p.mean, p.spread)
    sigmoid = lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -80, 80)))  # noqa: E731
    caps = [max(SHORTEST_CAP, p.cap >> shift) for shift in EFFORT_SHIFTS]
    caps = [min(length_cap or cap, cap) for cap in caps]
    if flat_tokens:  # length means nothing then: no sample is cut
        caps = [2**30] * len(caps)
    shares = np.cumsum(wrong_shares(p.modal, num_values))
    a, b, t, e = VERIFIERS[verifier][p.grade]
    known = np.arange(CONTEXT_CLAIMS + 1)
    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    return MathParams(
        chance=f32([sigmoid(logit + shift) for shift in EFFORT_LOGITS]),
        loop=f32(p.loop),
        wrong=f32(np.concatenate([shares[:-1], np.ones(NUM_VALUES - num_values + 1)])),
        length=jnp.asarray(np.rint(p.tokens * p.hard_length ** (1 - sigmoid(logit))), jnp.int32),
        wrong_length=jnp.int32(round(256 * p.wrong_length)),
        stretch=jnp.asarray(np.rint(1024 * lognormal_table(0.5, mean=1.0)), jnp.int32),
        cap=jnp.asarray(caps, jnp.int32),
        flat_tokens=jnp.int32(flat_tokens),
        confidence=confidence_table(p.confidence, 0.8),
        copy=f32([1 - (1 - c) ** known for c in (0.15, 0.30)]),
        anchor=f32(0.3),
        computable=f32(0.7),
        cue=f32(0.8),
        fails=f32([0.35, 0.28]),
        fixes=f32(0.5),
        misformalised=f32(0.2),
        accept=f32(sigmoid(a + b * logit)),
        reject=f32(sigmoid(np.log(t / (1 - t)) + e * logit)),
        correlation=f32(correlation),
        fault=f32(fault),
        provider_limit=f32(60),
        verify_tokens=jnp.int32(2_000),
        run_tokens=jnp.asarray([600, 100], jnp.int32),
        context_limit=jnp.int32(context_limit),
    )


class Math:
    """The task; see `ddpomdp.task.Task` for what each method is asked."""

    name = "Math-v0"
    roles: tuple[str, ...] = ROLES
    spawnable: tuple[str, ...] = ROLES[1:]
    rules: tuple[str, ...] = RULES
    num_values = NUM_VALUES
    self_features: tuple[str, ...] = ("row", "context_fill", "cue")
    claim_features: tuple[str, ...] = ("role_id", "log2_length", "accepts", "rejects", "run_id")
    board_features: tuple[str, ...] = ("newest_verdict", "newest_run_id", "cue")
    hands_claims = True
    by_value = True
    words: Mapping[str, str] = WORDS

    def __init__(
        self,
        num_rows: int,
        per_row: int,
        observed_claims: int,
        passes: int,
        *,
        alone: bool,
        vote: bool = False,
        show: bool = True,
        max_solves: int | None = None,
    ):
        """Static sizes M, K, C; `alone`: the lead works itself; `vote`: four values and `solve` only, for the oracle.

        `show`: confidence and length are seen. `max_solves`: solve turns of a life, None: as the context allows.
        """
        self.num_rows, self.per_row, self.passes = num_rows, per_row, passes
        self.alone, self.show, self.max_solves = alone, show, max_solves
        self.values = 4 if vote else NUM_VALUES
        self.efforts = ("high",) if vote else EFFORTS
        claim = Argument("claim", tuple(range(observed_claims)), "own_claims")
        efforts = () if vote else (Argument("effort", EFFORTS),)
        solve = Tool("solve", efforts)
        self.tools = (solve,) if vote else (solve, Tool("run_code", (claim,)), Tool("verify", (claim,)))

    # Episode -----------------------------------------------------------------------------------------------------

    def init(self, key: jax.Array, luck: jax.Array, params: MathParams) -> Problems:
        """Draw the problems: what is true from `key`, common luck and ties from `luck`."""
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        lineage = jnp.asarray(luck_.TASK_LINEAGE, jnp.uint32)
        words = luck_.life_key(key, lineage)
        w0, w1 = luck_.threefry(*words, row, jnp.uint32(Purpose.ROW))
        v0, v1 = luck_.threefry(*words, row + 2**16, jnp.uint32(Purpose.ROW))
        l0, l1 = luck_.threefry(*luck_.life_key(luck, lineage), row, jnp.uint32(Purpose.ROW))
        # A random permutation of the values' names (Fisher and Yates), three exchanges to a word.
        names = [jnp.full_like(row, value) for value in range(self.values)]
        for step, i in enumerate(range(self.values - 1, 0, -1)):
            j = luck_.below((w1, v0, v1)[step // 3], 10 * (step % 3), 10, i + 1)
            other = functools.reduce(lambda x, k: jnp.where(j == k, names[k], x), range(i), names[i])
            names = [jnp.where(j == k, names[i], name) if k < i else name for k, name in enumerate(names)]
            names[i] = other
        labels = functools.reduce(
            jnp.bitwise_or, [name.astype(jnp.uint32) << jnp.uint32(4 * i) for i, name in enumerate(names)]
        )
        computable = luck_.share(w0, 10, 10) < params.computable
        cue = computable == (luck_.share(w0, 20, 10) < params.cue)
        packed = luck_.field(w0, 0, 10) | (computable << 10) | (cue << 11) | (luck_.field(l1, 0, 16) << 12)
        return Problems(truth=names[0], labels=labels, packed=packed.astype(jnp.int32), tie=l0)

    def life(self, num_slots: int) -> Worker:
        """A newborn: nothing done."""
        zero, no = jnp.zeros(num_slots, jnp.int32), jnp.zeros(num_slots, bool)
        return Worker(solves=zero, context=zero, detailed=no, failed=no)

    def brief(
        self, level: jax.Array, words: tuple[jax.Array, jax.Array], params: MathParams
    ) -> tuple[jax.Array, jax.Array]:
        """Whether claims come as solutions; nobody takes a sibling's window."""
        return level == 2, jnp.zeros_like(level, bool)

    def handed(self, life: Worker, handed: jax.Array, understood: jax.Array) -> Worker:
        """New work at its level of detail."""
        return replace(
            life, detailed=jnp.where(handed, understood, life.detailed), failed=jnp.where(handed, False, life.failed)
        )

    def takes_claims(self, role: jax.Array) -> jax.Array:
        """`hand_over` says what."""
        return role > LEAD

    def hear(self, life: Worker, tokens: jax.Array, mail: jax.Array, params: MathParams) -> Worker:
        """What is read fills the context; who is sent a thousand tokens at once reads solutions."""
        return replace(
            life,
            context=life.context + tokens.astype(jnp.int32),
            detailed=life.detailed | (mail >= SOLUTION_TOKENS),
        )

    # Handing out -------------------------------------------------------------------------------------------------

    def select(
        self,
        facts: Problems,
        log: Log,
        known: jax.Array,
        selector: jax.Array,
        role: jax.Array,
        handed: jax.Array,
        params: MathParams,
    ) -> jax.Array:
        """Rows that a selector picks, by the role of the child asked first.

        missing: no claim (solver); cue and no run (executor); newest claim without verdict (verifier).
        conflicting: several values; for a solver no claim, or the newest claim rejected, or without verdict while
        another value is known. again: every row handed out.
        """
        newest = once(byvalue.newest, log, known)
        net, verdicts = once(byvalue.verdict_on, log, known, newest)
        claims = byvalue.by_row(known, log.per_row) & ~byvalue.bits_of(byvalue.flag(log, VERDICT))
        several = once(byvalue.several_values, log, claims)
        has = newest >= 0
        asked = lambda wanted: (role == wanted)[:, None]  # noqa: E731
        missing = jnp.where(asked(EXECUTOR), has & facts.cue & ~self._ran(log, known), ~has)
        missing = jnp.where(asked(VERIFIER), has & (verdicts == 0), missing)
        open_ = ~has | (net < 0) | ((verdicts == 0) & several)
        conflicting = jnp.where(asked(SOLVER), open_, several)
        is_ = lambda name: (selector == SELECTORS.index(name))[:, None]  # noqa: E731
        return handed & jnp.where(is_("missing"), missing, jnp.where(is_("conflicting"), conflicting, is_("again")))

    def _ran(self, log: Log, known: jax.Array) -> jax.Array:
        """bool[P, M]: a run is known."""
        made_by_run = ~byvalue.flag(log, VERDICT) & (_run(byvalue.payload(log)) > 0)
        return jnp.any(byvalue.by_row(known, log.per_row) & byvalue.bits_of(made_by_run) != 0, axis=-1)

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
        """Solvers get nothing (short), all claims and the verdicts on their own (standard), everything (detailed).

        Executors and verifiers get the newest claim (short), all claims (standard), everything (detailed).
        """
        claims = parent & masks.claim
        held = byvalue.by_row(claims, log.per_row)
        newest = byvalue.of_rows(byvalue.only(byvalue.last(held), held), log.per_row)
        column = lambda flags: flags[:, None]  # noqa: E731
        asks = (role == SOLVER) & (level == 1)
        own = where_needed(jnp.any(asks), _verdicts_on_own, jnp.zeros_like(parent), log, parent, uid)
        solver = jnp.where(column(level == 1), claims | own, jnp.uint32(0))
        other = jnp.where(column(level == 1), claims, newest)
        chosen = jnp.where(column(role == SOLVER), solver, other)
        chosen = jnp.where(column(level == 2), parent, chosen)
        return jnp.where(column(role > LEAD), chosen & byvalue.row_words(rows, log.per_row), jnp.uint32(0))

    # Turns -------------------------------------------------------------------------------------------------------

    def legal(
        self, life: Worker, role: jax.Array, has_row: jax.Array, num_claims: jax.Array, params: MathParams
    ) -> list[jax.Array]:
        """Each role its own tool while its window has rows; a lone lead all of them."""
        fits = life.context < params.context_limit
        more = fits if self.max_solves is None else fits & (life.solves < self.max_solves)
        lone = (role == LEAD) & self.alone
        solve = ((role == SOLVER) | lone) & has_row & more
        run = jnp.where(role == EXECUTOR, has_row, lone & (num_claims > 0)) & fits
        verify = jnp.where(role == VERIFIER, has_row, lone & (num_claims > 0)) & fits
        return [solve, run, verify][: len(self.tools)]

    def claim_bound(self, role: jax.Array, num_claims: jax.Array) -> jax.Array:
        """Executors and verifiers take the claims of their window in turn; a lead names one of its newest."""
        return jnp.where(role == LEAD, num_claims, jnp.where(role == SOLVER, 0, 1))

    def cost(self, tool: jax.Array, params: MathParams) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One critical step each; tokens depend on what comes of a call (`Worked.effort`)."""
        steps = jnp.where(tool >= FIRST_TASK_TOOL, 1000, 0)
        return jnp.zeros_like(tool), steps, jnp.zeros_like(tool, bool)

    def act(self, facts: Problems, life: Worker, working: Working, log: Log, params: MathParams) -> Worked:
        """One task turn of everyone who takes one."""
        tool, role, uid, per_row = working.tool, working.role, working.uid, log.per_row
        solving = (tool == SOLVE) & working.has_row
        running, judging = tool == RUN, tool == VERIFY
        load = jnp.sum(solving | running | judging).astype(jnp.float32)
        work, outcome = once(luck_.draws, working.life_keys, working.turn, (Purpose.WORK, Purpose.OUTCOME))
        fault = luck_.share(work[0], 0, 16) < params.fault * jnp.maximum(1.0, load / params.provider_limit)

        # Whom a turn is about: the row at the cursor, or that of the claim a lone lead names.
        at = jnp.clip(working.argument, 0, working.newest.shape[1] - 1)[:, None]
        named = jnp.take_along_axis(working.newest, at, axis=1)[:, 0]
        by_name = (role == LEAD) & ~solving
        named_row, named_k = claims_.row_and_k(named, per_row)
        row = jnp.where(by_name, named_row, working.row)
        met = facts.at(row)
        seen = once(_see, log, row, working.known, uid)
        value_at = functools.partial(_value_at, log, row)

        # Solve.
        effort = jnp.where(solving, working.argument, 0) if len(self.efforts) > 1 else jnp.full_like(tool, 2)
        u = luck_.unit(outcome[0])
        chance = params.chance[effort, met.difficulty]
        right = u < chance
        loops = ~right & (u < chance + (1.0 - chance) * params.loop)
        kind = sum((luck_.share(outcome[1], 0, 12) >= params.wrong[i] for i in range(self.values - 2)), jnp.int32(1))
        fresh = met.label(jnp.where(right, 0, kind))
        detailed = life.detailed.astype(jnp.int32)
        copies = luck_.share(work[1], 0, 12) < params.copy[detailed, seen.others]
        again = seen.own_rejected & (luck_.share(work[1], 24, 8) < params.anchor)
        source = _pick(seen, life.detailed, luck_.field(work[1], 12, 12))
        value = jnp.where(again, value_at(seen.own), fresh)
        value = jnp.where(copies, value_at(source), value)
        loops = loops & ~copies & ~again
        solved = value == met.truth
        length = params.length[met.difficulty]
        length = jnp.where(solved, length, (length * params.wrong_length) >> 8)
        length = (length * params.stretch[luck_.field(work[0], 16, 10)]) >> 10
        length = jnp.maximum(length >> jnp.asarray(EFFORT_SHIFTS, jnp.int32)[effort], 1)
        cap = params.cap[effort]
        answers = solving & ~fault & ~loops & (length <= cap)
        spent = jnp.where(loops, cap, jnp.minimum(length, cap))
        spent = jnp.where(params.flat_tokens > 0, params.flat_tokens, spent)

        # Run code and verify: the claim a lone lead names; else the newest on the row, the newest not yet judged.
        target = jnp.where(judging, seen.unjudged, seen.newest)
        target = jnp.where(by_name, jnp.where(named >= 0, named_k, -1), target)
        has = target >= 0
        claimed = value_at(target)
        fails = luck_.share(work[1], 0, 16) < params.fails[life.failed.astype(jnp.int32)]
        runs = running & ~fault & has
        clean = runs & ~fails
        misled = u < params.misformalised
        wrong = met.label(1 + luck_.below(outcome[1], 0, 12, self.values - 1))
        computed = jnp.where(met.computable, u < params.fixes, misled)
        result = jnp.where(computed, jnp.where(met.computable, met.truth, wrong), claimed)
        common = luck_.share(work[1], 0, 8) < params.correlation
        v = jnp.where(common, met.common, u)
        accepted = jnp.where(
            claimed == met.truth, v < params.accept[met.difficulty], v >= params.reject[met.difficulty]
        )
        repeat = judging & has & jnp.any(seen.done & byvalue.only(target, seen.done) != 0, axis=-1)
        judges = judging & has & ~fault & ~repeat

        # Together.
        worked = solving | running | judging
        makes = answers | clean
        made_value = jnp.where(clean, result, value)
        confidence = params.confidence[(made_value == met.truth).astype(jnp.int32), luck_.field(outcome[1], 12, 10)]
        run = jnp.where(clean, jnp.where(result == claimed, RUN_SAME, RUN_CHANGED), 0)
        parent = jnp.where(clean, target, jnp.where(copies, source, 0))
        payload = _payload(parent, run, role, jnp.where(answers, length, 0))
        code = jnp.where(solving, jnp.where(answers, ResultCode.FOUND, ResultCode.EMPTY), ResultCode.NOTHING)
        code = jnp.where(running, jnp.where(clean, ResultCode.FOUND, ResultCode.EMPTY), code)
        code = jnp.where(judging, jnp.where(has, ResultCode.REFUSED, ResultCode.EMPTY), code)
        code = jnp.where(judges, jnp.where(accepted, ResultCode.ACCEPTED, ResultCode.REJECTED), code)
        code = jnp.where(worked & fault, ResultCode.FAULT, code)
        useful = jnp.where(makes | judges, 1.0, 0.0)
        useful = useful - jnp.where((running & ~fault & ~clean) | (judging & ~fault & ~judges), 1.0, 0.0)
        solved_or_run = jnp.where(made_value == met.truth, 1.0, -1.0)
        verdict = jnp.where(judges, jnp.where(accepted == (claimed == met.truth), 1.0, -1.0), 0.0)
        second = runs & fails & life.failed
        last_one = judging & ~fault & (~has | (seen.num_unjudged <= 1))
        moves = jnp.where(running, (running & ~fault & ~has) | clean | second, last_one)
        moves = jnp.where(solving, ~fault, moves & ~by_name & (running | judging))
        tokens = jnp.where(solving, spent, 0)
        tokens = jnp.where(judging & has, params.verify_tokens, tokens)
        tokens = jnp.where(running & has, params.run_tokens[0], tokens)
        new_context = jnp.where(answers, SOLUTION_TOKENS, 0) + jnp.where(judges | runs, NOTE_TOKENS, 0)
        return Worked(
            life=replace(
                life,
                solves=life.solves + solving,
                context=life.context + new_context,
                failed=jnp.where(running & ~fault, runs & fails & ~life.failed, life.failed),
            ),
            claims=NewClaims(
                made=makes | judges,
                row=row,
                value=jnp.where(judges, claimed, made_value),
                confidence=jnp.where(judges, 2**15, confidence),
                luck=jnp.where(judges, target, payload).astype(jnp.uint32) << jnp.uint32(16),
                flags=jnp.where(judges, VERDICT | jnp.where(accepted, ACCEPT, 0), 0),
                twin=jnp.zeros_like(fault),
                twin_value=jnp.zeros_like(tool),
            ),
            advance=moves,
            code=code,
            value=jnp.where(makes, made_value, -1),
            useful=useful,
            role=jnp.where(makes, solved_or_run, verdict),
            verdict=verdict,
            effort=Effort(
                tokens=jnp.where(worked & ~fault, tokens, 0),
                tool_tokens=jnp.where(runs, params.run_tokens[1], 0),
                outside=runs,
            ),
        )

    # Answers -----------------------------------------------------------------------------------------------------

    def aggregate(
        self, facts: Problems, log_facts: Log, votes: ValueVotes, rule: jax.Array, params: MathParams
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Choose an answer per problem by one of `RULES`; see the card for what each does."""
        is_rule = lambda name: (rule == RULES.index(name))[:, None, None]  # noqa: E731
        net = votes.accepts - votes.rejects
        points = jnp.where(is_rule("verdict"), votes.claims + net, votes.claims)
        points = jnp.where(is_rule("best"), net * 256 + votes.claims, points)
        points = jnp.where(is_rule("last"), 0, points)
        names = jnp.arange(byvalue.VALUES, dtype=jnp.uint32)
        tie = ((facts.tie[:, None] >> (4 * names)) & jnp.uint32(15)).astype(jnp.int32)
        points = points * 128 + jnp.where(is_rule("majority"), tie, votes.latest)
        held = votes.claims > 0
        top = jnp.argmax(jnp.where(held, points, -(2**30)), axis=-1)
        pick = lambda x: jnp.take_along_axis(x, top[..., None], axis=-1)[..., 0]  # noqa: E731
        some = jnp.any(held, axis=-1)
        leader = jnp.where((rule == RULES.index("last"))[:, None], pick(votes.latest), pick(votes.first))
        answer = jnp.where(some, 1 << top, 0).astype(jnp.int32)
        return answer, jnp.where(some, leader, -1), jnp.zeros_like(answer)

    def quality(self, facts: Problems, answer: jax.Array) -> jax.Array:
        """Share of problems answered right."""
        return jnp.sum(_right(facts, answer)).astype(jnp.float32) / self.num_rows

    def gains(self, facts: Problems, old: jax.Array, new: jax.Array) -> jax.Array:
        """Each row's change of quality."""
        return (_right(facts, new) - _right(facts, old)).astype(jnp.float32) / self.num_rows

    def best_quality(self, facts: Problems, values: jax.Array, told: jax.Array) -> jax.Array:
        """Share of problems whose right answer is among the claims bool[M, K], of values int32[M, K]."""
        return jnp.mean(jnp.any(told & (values == facts.truth[:, None]), axis=-1).astype(jnp.float32))

    def resolved(self, facts: Problems, board: Any, answer: jax.Array) -> jax.Array:
        """Problems with several answers known to the root of which it has chosen the right one."""
        return (board.values > 1) & (_right(facts, answer) == 1)

    def coach(self, **options: Any) -> Any:
        """A rubric of right and wrong work; options are its fields."""
        from ddpomdp_envs.answers_coach import Rubric

        return Rubric(**options)

    def info(self, facts: Problems, answer: jax.Array) -> dict[str, jax.Array]:
        """success (all right), and how many problems are right and answered."""
        right = _right(facts, answer)
        return {
            "success": jnp.all(right == 1).astype(jnp.float32),
            "right": jnp.sum(right, dtype=jnp.int32),
            "answered": jnp.sum(answer != 0, dtype=jnp.int32),
        }

    # Agents ------------------------------------------------------------------------------------------------------

    def see(
        self, facts: Problems, life: Worker, row: jax.Array, has_row: jax.Array, params: MathParams
    ) -> list[jax.Array]:
        """The row at the cursor, the context's fill, and whether the row looks computable."""
        f = lambda x: x.astype(jnp.float32)  # noqa: E731
        fill = f(life.context) / f(params.context_limit)
        return [jnp.where(has_row, f(row) / self.num_rows, -1.0), fill, f(has_row & facts.cue[row])]

    def observe(self, life: Worker, params: MathParams) -> list[jax.Array]:
        """`see` is asked instead."""
        raise NotImplementedError("Math-v0 shows what its lives see of their rows: see()")

    def observe_claims(
        self, log: Log, known: jax.Array, place: jax.Array, params: MathParams
    ) -> list[jax.Array | Fields]:
        """Author's role, length, the verdicts known on it, and what the run that made it said."""
        row, k = claims_.row_and_k(place, log.per_row)
        payload = (log.fixed[k, row] >> jnp.uint32(16)).astype(jnp.int32)
        accept = byvalue.words_of(byvalue.flag(log, ACCEPT))
        about = once(_verdicts_by_claim, log).reshape(-1, max(log.per_row // claims_.WORD, 1))
        about = about[jnp.maximum(place, 0)]  # [N, C, G]
        accepts, rejects = (
            byvalue.size(about & byvalue.row_of(told, row, log.per_row)) for told in (known & accept, known & ~accept)
        )
        f = lambda x: x.astype(jnp.float32)  # noqa: E731
        length = f(_length_code(payload) + 4) / 32 if self.show else jnp.zeros(place.shape, jnp.float32)
        # Accepts and rejects are up to K = 128: eight bits each.
        return [f(_role(payload)), length, Fields(accepts | (rejects << 8) | (_run(payload) << 16), 8, 3)]

    def observe_board(self, facts: Problems, log: Log, known: jax.Array, params: MathParams) -> list[jax.Array]:
        """Accepts minus rejects of the newest claim, what the run that made it said, and the cue."""
        newest = byvalue.newest(log, known)
        net, _ = byvalue.verdict_on(log, known, newest)
        made = jnp.take_along_axis(byvalue.payload(log)[None], jnp.maximum(newest, 0)[..., None], axis=-1)[..., 0]
        run = jnp.where(newest >= 0, _run(made), 0)
        return [net, run, jnp.broadcast_to(facts.cue.astype(jnp.int32), net.shape)]

    def worker_turn(self, harness: Any, legal: Legal) -> jax.Array:
        """Solvers solve with high effort, executors run, verifiers verify; then they return: solvers in summary."""
        turns = jnp.zeros((legal.tools.shape[0], 1 + harness.num_args), jnp.int32)
        may = lambda tool: ((legal.tools >> tool) & 1 == 1)[:, None]  # noqa: E731
        solver = (legal.bounds[:, -1] == 0)[:, None]  # of a claim argument: `claim_bound`
        answers = jnp.asarray(harness.turn("return", claims="all", detail="summary"))
        evidence = jnp.asarray(harness.turn("return", claims="new", detail="full"))
        turns = jnp.where(may(RETURN), jnp.where(solver, answers, evidence), turns)
        effort = {"effort": "high"} if len(self.efforts) > 1 else {}
        for index, turn in ((VERIFY, "verify"), (RUN, "run_code"), (SOLVE, "solve")):
            if index - FIRST_TASK_TOOL < len(self.tools):
                said = harness.turn(turn, **(effort if turn == "solve" else {}))
                turns = jnp.where(may(index), jnp.asarray(said), turns)
        return turns


# Entries of a row ---------------------------------------------------------------------------------------------------
# Sixteen bits of the task's own per claim: parent claim (7), run (2), role (2), length (5); of a verdict the subject.


def _payload(parent: jax.Array, run: jax.Array, role: jax.Array, length: jax.Array) -> jax.Array:
    """int32[N]: what a claim's sixteen bits say."""
    octave = 31 - jax.lax.clz(jnp.maximum(length, 16)).astype(jnp.int32)
    half = (jnp.maximum(length, 16) >> (octave - 1)) & 1
    code = jnp.clip(2 * octave + half - 4, 0, 31)
    return jnp.maximum(parent, 0) | (run << 7) | (role << 9) | (code << 11)


def _run(payload: jax.Array) -> jax.Array:
    return (payload >> 7) & 3


def _role(payload: jax.Array) -> jax.Array:
    return (payload >> 9) & 3


def _length_code(payload: jax.Array) -> jax.Array:
    """2 log2(length) - 4 in half octaves."""
    return (payload >> 11) & 31


def _verdicts_by_claim(log: Log) -> jax.Array:
    """uint32[M, K, G]: the verdicts of a row that speak of the entry at k."""
    planes = [plane[:, None] for plane in _subject_digits(log)]
    verdict = byvalue.bits_of(byvalue.flag(log, VERDICT))[:, None]
    return byvalue.with_number(planes, jnp.arange(log.per_row, dtype=jnp.int32)) & verdict


def _subject_digits(log: Log) -> list[jax.Array]:
    return byvalue.digits(byvalue.subject(log), (log.per_row - 1).bit_length())


def _verdicts_on_own(log: Log, known: jax.Array, uid: jax.Array) -> jax.Array:
    """uint32[N, W]: known verdicts on claims by each of `uid`."""
    author = jnp.take_along_axis((log.head >> 11).T, byvalue.subject(log) & (log.per_row - 1), axis=1)
    return known & byvalue.words_of(byvalue.flag(log, VERDICT) & (author == uid[:, None, None]))


@pytree
class Seen:
    """What each life knows of one row. Axes N slot, K."""

    newest: jax.Array  # int32[N]    place of the newest claim known, -1 none
    unjudged: jax.Array  # int32[N]    of the newest without a verdict of its own
    num_unjudged: jax.Array  # int32[N]
    done: jax.Array  # uint32[N,G] claims it has judged itself
    own: jax.Array  # int32[N]    its own newest claim
    own_rejected: jax.Array  # bool[N]     which was rejected
    others: jax.Array  # int32[N]    newest claims of others, at most `CONTEXT_CLAIMS`
    places: list[jax.Array]  # int32[N] each, newest first, -1 none
    net: list[jax.Array]  # int32[N] each: accepts minus rejects known


def _see(log: Log, row: jax.Array, known: jax.Array, uid: jax.Array) -> Seen:
    held = byvalue.row_of(known, row, log.per_row)  # [N, G]
    facts = [*(byvalue.bits_of(byvalue.flag(log, bit)) for bit in (VERDICT, ACCEPT)), *_subject_digits(log)]
    verdict, accept, *planes = once(lambda facts: [fact[row] for fact in facts], once(lambda facts: facts, facts))
    # Author and subject of every entry of the row, in one number and one look-up.
    author_subject = once(lambda row: (((log.head >> 11) << 7) | byvalue.subject(log).T).T[row], row)
    mine = once(lambda entries, uid: byvalue.bits_of(entries >> 7 == uid[:, None]), author_subject, uid)
    claims, verdicts = held & ~verdict, held & verdict

    def net_of(k: jax.Array) -> jax.Array:
        about = verdicts & byvalue.with_number(planes, k)
        return 2 * byvalue.size(about & accept) - byvalue.size(about)

    done = once(_judged, verdicts & mine, author_subject)
    unjudged = claims & ~done
    own = byvalue.last(claims & mine)
    others, places, net = claims & ~mine, [], []
    for _ in range(CONTEXT_CLAIMS):
        k = byvalue.last(others)
        others = others & ~byvalue.only(k, others)
        places.append(k)
        net.append(net_of(k))
    return Seen(
        newest=byvalue.last(claims),
        unjudged=byvalue.last(unjudged),
        num_unjudged=byvalue.size(unjudged),
        done=done,
        own=own,
        own_rejected=(own >= 0) & (net_of(own) < 0),
        others=functools.reduce(jnp.add, [(k >= 0).astype(jnp.int32) for k in places]),
        places=places,
        net=net,
    )


def _judged(verdicts: jax.Array, author_subject: jax.Array) -> jax.Array:
    """uint32[N, G]: the claims that verdicts uint32[N, G] of a row speak of, by subjects in low bits int32[N, K]."""
    subject = author_subject & byvalue.SUBJECT
    per_row = subject.shape[-1]
    index = jnp.arange(per_row, dtype=jnp.uint32)
    flags = (jnp.repeat(verdicts, -(-per_row // verdicts.shape[-1]), axis=-1) >> (index & 31)) & jnp.uint32(1) == 1
    bit = jnp.uint32(1) << (subject & 31).astype(jnp.uint32)
    words = [
        claims_.union(jnp.where(flags & (subject >> 5 == word), bit, jnp.uint32(0)), axis=1)
        for word in range(verdicts.shape[-1])
    ]
    return jnp.stack(words, axis=-1)


def _value_at(log: Log, row: jax.Array, place: jax.Array) -> jax.Array:
    """int32[N]: value of the entry at places k of rows int32[N], of place -1 the first."""
    return log.head[jnp.maximum(place, 0), row] & claims_.MAX_VALUE


def _pick(seen: Seen, detailed: jax.Array, word: jax.Array) -> jax.Array:
    """int32[N]: place of the claim copied: any, or of solutions by weight 3 ** (accepts - rejects), by twelve bits."""
    powers = jnp.asarray([1, 3, 9, 27, 81], jnp.int32)
    weights = []
    for k, net in zip(seen.places, seen.net, strict=True):
        weight = jnp.where(detailed, powers[jnp.clip(net, -2, 2) + 2], 1)
        weights.append(jnp.where(k >= 0, weight, 0))
    point = (word * functools.reduce(jnp.add, weights)) >> 12
    chosen, passed = jnp.full_like(word, -1), jnp.zeros_like(word)
    for k, weight in zip(seen.places, weights, strict=True):
        here = (point >= passed) & (point < passed + weight)
        chosen, passed = jnp.where(here, k, chosen), passed + weight
    return chosen


def _right(facts: Problems, answer: jax.Array) -> jax.Array:
    """int32[M]: 0 or 1 per problem of an answer (sets of values)."""
    return (answer == (1 << facts.truth)).astype(jnp.int32)
