"""Search-v0: a lead and its searchers fill a table from the web (WideSearch, Kimi K2.5 agent swarm, WideSeek-R1).

Laws, presets and sources stand in the card, cards/search.md. Quality is item-F1 over the rows.

Axis letters: N slot, M row, K claim of a row, P parent place, W words of a claim set.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import claims as claims_
from ddpomdp import luck as luck_
from ddpomdp.claims import Facts, Log, NewClaims, Votes
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, Argument, Legal, Tool
from ddpomdp.luck import Purpose
from ddpomdp.params import confidence_table, lognormal_table
from ddpomdp.pytree import once, pytree, replace, where_needed
from ddpomdp.task import Worked, Working

LEAD, SEARCHER, CHECKER = range(3)
SEARCH, CHECK = FIRST_TASK_TOOL, FIRST_TASK_TOOL + 1
RULES = ("majority", "verdict", "best", "last", "union")
CHECKED = ("verdict", "best")  # those that heed checks
NUM_VALUES = 8
GROUP_ROWS = 8  # rows of a group for row-F1
INJECTED = 28  # bit of a row's word
MAX_TURNS = 256  # places of the table of q by search turns

# The two published models' parameters (facts: WideSearch and WideSeek-R1 fits, see the card).
MODELS: dict[str, dict[str, Any]] = {
    "strong": {
        "q0": 0.945,
        "context_turns": 271.0,
        "mean_turns": 2.9,
        "hard": 0.24,
        "wrong_rate": 0.42,
        "reject_wrong": 0.56,
        "capacity": 40.0,
        "per_message": 0.35,
        "per_claim": 0.25,
        "plan": 1.7,
        "understood": (0.50, 0.95, 1.0),
        "copies": (0.15, 0.03, 0.0),
        "confidence": (0.4, 0.8),
        "check_reject": 0.34,
        "lead_turns": 250,
    },
    "weak": {
        "q0": 0.53,
        "context_turns": 72.0,
        "mean_turns": 2.2,
        "hard": 0.23,
        "wrong_rate": 0.36,
        "reject_wrong": 0.11,
        "capacity": 11.4,
        "per_message": 0.57,
        "per_claim": 0.14,
        "plan": 2.0,
        "understood": (0.30, 0.60, 0.80),
        "copies": (0.40, 0.25, 0.06),
        "confidence": (2.0, 0.5),
        "check_reject": 0.56,
        "lead_turns": 60,
    },
}


# What the text view says of the task, its roles and its tools.
WORDS: Mapping[str, str] = {
    "task": (
        f"Fill a table from the web. Each row has one right value, a label from 0 to {NUM_VALUES - 1}; some rows may "
        "have none and are best left empty. Who searches a row may find the right value, a wrong one, or nothing; "
        "values that several agents find independently of each other are more often right."
    ),
    "score": (
        "The quality of the answer is item-F1 = 2 right / (reported + answerable rows). The answer is the lead's last "
        "aggregate; without one it is empty and the quality 0."
    ),
    "lead": "hands out rows, reads returns, merges them into the answer and stops",
    "searcher": "searches the rows handed to it one after the other and returns what it found",
    "checker": "judges the claims on the rows handed to it and returns its verdicts",
    "search": "Search the web for the next row of your own; a row may take several turns.",
    "check": "Judge one of the claims you know.",
    "check.claim": "Which of your newest claims, 0 the newest.",
}


@pytree
class SearchParams:
    """Numbers of the laws; tables are looked up by integers so that outcomes are the same on every device."""

    q: jax.Array  # f32[256]    chance of a right value by search turns so far
    hard_factor: jax.Array  # f32[]
    length: jax.Array  # int32[1024] turns a row takes, by ten random bits
    wrong_rate: jax.Array  # f32[2]      not understood, understood
    lost_factor: jax.Array  # f32[]       q of a worker that has not understood its brief
    modal: jax.Array  # f32[]       share of wrong values that are the row's modal one
    fault: jax.Array  # f32[]       per search turn, at low provider load
    provider_limit: jax.Array  # f32[]       concurrent searches before faults rise
    correlation: jax.Array  # f32[]       chance to use the row's common luck instead of one's own
    hard: jax.Array  # f32[]
    unanswerable: jax.Array  # f32[]
    poison: jax.Array  # f32[]
    poison_hit: jax.Array  # f32[]       a claim on a poisoned row takes the poisoned value
    confidence: jax.Array  # int32[2,1024] in 2**-16, wrong and right, by ten random bits
    garble: jax.Array  # f32[]       a summary garbles a claim
    understood: jax.Array  # f32[3]      by brief level
    copies: jax.Array  # f32[3]      window of a random sibling instead of one's own
    reject_wrong: jax.Array  # f32[]       aggregation rejects a winner when all known values are wrong
    check_accept: jax.Array  # f32[2]      right claims accepted: easy row, hard row
    check_reject: jax.Array  # f32[]       wrong claims rejected
    injection: jax.Array  # f32[]       rows whose page holds an instruction
    obey: jax.Array  # f32[]       lives that follow one
    limit: jax.Array  # int32[3]    search and check turns per life, by role
    call_tokens: jax.Array  # int32[]     search, check


@pytree
class Rows:
    """Hidden facts of an episode. Axis M."""

    truth: jax.Array  # int32[M]
    answerable: jax.Array  # bool[M]
    tie: jax.Array  # uint32[M]    luck of ties
    reject: jax.Array  # f32[M]      luck of rejections
    packed: jax.Array  # int32[M]    what a search meets, in one word: one look-up per life

    def at(self, row: jax.Array) -> "Row":
        """What those meet who work on rows int32[N]."""
        word = self.packed[row]
        return Row(
            truth=luck_.field(word, 0, 3),
            modal=luck_.field(word, 3, 3),
            poison=luck_.field(word, 6, 3),
            hard=luck_.field(word, 9, 1) == 1,
            answerable=luck_.field(word, 10, 1) == 1,
            poisoned=((word >> 11) | (word >> INJECTED)) & 1 == 1,
            common=luck_.share(word, 12, 16),
        )


@pytree
class Row:
    """One row per life. Axis N."""

    truth: jax.Array  # int32[N]
    modal: jax.Array  # int32[N]    offset of the modal wrong value, 0..6
    poison: jax.Array  # int32[N]    poisoned value
    hard: jax.Array  # bool[N]
    answerable: jax.Array  # bool[N]
    poisoned: jax.Array  # bool[N]     a page of the row shows the poisoned value, with an instruction or without
    common: jax.Array  # f32[N]      luck shared by all who search the row


@pytree
class Searcher:
    """Fields per life. Axis N."""

    turns: jax.Array  # int32[N]    search and check turns so far
    row: jax.Array  # int32[N]    row in progress, -1 none
    left: jax.Array  # int32[N]    turns left of it
    understood: jax.Array  # bool[N]
    next_claim: jax.Array  # int32[N]    checkers: next place to judge in the row


@pytree
class Found:
    """What search turns come to. Axis N."""

    finishes: jax.Array  # bool[N]     the row is done
    made: jax.Array  # bool[N]     a claim comes of it
    left: jax.Array  # int32[N]    turns left of the row
    value: jax.Array  # int32[N]
    truth: jax.Array  # int32[N]
    right: jax.Array  # bool[N]
    confidence: jax.Array  # int32[N]    in 2**-16
    poisoned: jax.Array  # bool[N]     the poisoned value, from the page
    obeyed: jax.Array  # bool[N]     the poisoned value, as an instruction wants it
    knew: jax.Array  # bool[N]     something of the row was known before


@pytree
class Judged:
    """What check turns come to. Axis N."""

    target: jax.Array  # int32[N]    place of the claim in the log, -1 nothing to check
    first: jax.Array  # int32[N]    its k, for checkers
    judges: jax.Array  # bool[N]     a verdict is given
    right: jax.Array  # bool[N]     it agrees with the truth
    accepted: jax.Array  # bool[N]
    moves_on: jax.Array  # bool[N]     a checker is done with the claim
    row_done: jax.Array  # bool[N]     and with the row

    @classmethod
    def nothing(cls, no: jax.Array) -> "Judged":
        """Of lives bool[N] none of which checks."""
        no = jnp.zeros_like(no)
        return cls(no.astype(jnp.int32) - 1, no.astype(jnp.int32) - 1, no, no, no, no, no)


def search_params(
    model: str,
    *,
    poison: float,
    unanswerable: float,
    correlation: float = 0.0,
    fault: float = 0.07,
    injection: float = 0.0,
    obey: float = 0.3,
) -> SearchParams:
    """The laws of a model preset as arrays."""
    p = MODELS[model]
    turns = np.arange(MAX_TURNS)
    x = turns / p["context_turns"]
    q = p["q0"] * np.exp(-x * np.sqrt(x))
    logit = lambda value: np.log(value / (1 - value))  # noqa: E731
    accept = [1 / (1 + np.exp(-(1.65 + 0.81 * logit(value)))) for value in (p["q0"], 0.1 * p["q0"])]
    return SearchParams(
        q=jnp.asarray(q, jnp.float32),
        hard_factor=jnp.float32(0.1),
        length=jnp.asarray(np.ceil(lognormal_table(0.6, mean=p["mean_turns"])), jnp.int32),
        wrong_rate=jnp.asarray([0.8, p["wrong_rate"]], jnp.float32),
        lost_factor=jnp.float32(0.3),
        modal=jnp.float32(0.3),
        fault=jnp.float32(fault),
        provider_limit=jnp.float32(60),
        correlation=jnp.float32(correlation),
        hard=jnp.float32(p["hard"]),
        unanswerable=jnp.float32(unanswerable),
        poison=jnp.float32(poison),
        poison_hit=jnp.float32(0.5),
        confidence=confidence_table(*p["confidence"]),
        garble=jnp.float32(0.05),
        understood=jnp.asarray(p["understood"], jnp.float32),
        copies=jnp.asarray(p["copies"], jnp.float32),
        reject_wrong=jnp.float32(p["reject_wrong"]),
        check_accept=jnp.asarray(accept, jnp.float32),
        check_reject=jnp.float32(p["check_reject"]),
        injection=jnp.float32(injection),
        obey=jnp.float32(obey),
        limit=jnp.asarray([p["lead_turns"], 100, 100], jnp.int32),
        call_tokens=jnp.int32(250),
    )


class Search:
    """The task; see `ddpomdp.task.Task` for what each method is asked."""

    name = "Search-v0"
    roles: tuple[str, ...] = ("lead", "searcher", "checker")
    spawnable: tuple[str, ...] = ("searcher", "checker")
    rules: tuple[str, ...] = RULES
    num_values = NUM_VALUES
    self_features: tuple[str, ...] = ("turns_used", "row_in_progress")
    hands_claims = True
    words: Mapping[str, str] = WORDS

    def __init__(self, num_rows: int, per_row: int, observed_claims: int, *, injects: bool = False):
        """Static sizes: M, K and C; `injects`: pages may hold instructions."""
        self.num_rows, self.per_row, self.injects = num_rows, per_row, injects
        self.tools = (
            Tool("search"),
            Tool("check", (Argument("claim", tuple(range(observed_claims)), "own_claims"),)),
        )

    # Episode -----------------------------------------------------------------------------------------------------

    def init(self, key: jax.Array, luck: jax.Array, params: SearchParams) -> Rows:
        """Draw the rows: what is true from `key`, the rows' luck from `luck`; shares have a grain of 2**-10."""
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        lineage = jnp.asarray(luck_.TASK_LINEAGE, jnp.uint32)
        (w0, w1), (l0, l1) = (
            once(luck_.threefry, *luck_.life_key(k, lineage), row, jnp.uint32(Purpose.ROW)) for k in (key, luck)
        )
        truth = luck_.field(w1, 0, 3)
        answerable = luck_.share(w0, 10, 10) >= params.unanswerable
        fields = (
            (truth, 0),
            (luck_.below(w1, 3, 14, 7), 3),
            ((truth + 1 + luck_.below(w1, 17, 15, 7)) & (NUM_VALUES - 1), 6),
            (luck_.share(w0, 20, 12) < params.hard, 9),
            (answerable, 10),
            (luck_.share(w0, 0, 10) < params.poison, 11),
            (luck_.field(l1, 16, 16), 12),
        )
        if self.injects:
            i0, _ = luck_.threefry(*luck_.life_key(key, lineage), row + 2**16, jnp.uint32(Purpose.ROW))
            fields = (*fields, (luck_.share(i0, 0, 10) < params.injection, INJECTED))
        packed = jnp.zeros_like(truth)
        for field, shift in fields:
            packed = packed | (field.astype(jnp.int32) << shift)
        return Rows(
            truth=truth,
            answerable=answerable,
            tie=l0,
            reject=luck_.share(l1, 0, 16),
            packed=packed,
        )

    def life(self, num_slots: int) -> Searcher:
        """A newborn: nothing done; who was never briefed (the lead) understands."""
        zero = jnp.zeros(num_slots, jnp.int32)
        return Searcher(turns=zero, row=zero - 1, left=zero, understood=jnp.ones(num_slots, bool), next_claim=zero)

    def brief(
        self, level: jax.Array, words: tuple[jax.Array, jax.Array], params: SearchParams
    ) -> tuple[jax.Array, jax.Array]:
        """Whether a brief is understood, and whether its reader works on a sibling's window."""
        understood = luck_.unit(words[0]) < params.understood[level]
        copies = luck_.share(words[1], 0, 16) < params.copies[level]
        return understood, copies

    def handed(self, life: Searcher, handed: jax.Array, understood: jax.Array) -> Searcher:
        """New work: the row in progress is dropped."""
        return replace(
            life,
            row=jnp.where(handed, -1, life.row),
            understood=jnp.where(handed, understood, life.understood),
            next_claim=jnp.where(handed, 0, life.next_claim),
        )

    def takes_claims(self, role: jax.Array) -> jax.Array:
        """Checkers are handed what their parent knows."""
        return role == CHECKER

    # Turns -------------------------------------------------------------------------------------------------------

    def legal(
        self, life: Searcher, role: jax.Array, has_row: jax.Array, num_claims: jax.Array, params: SearchParams
    ) -> list[jax.Array]:
        """`search` for lead and searcher with rows left; `check` for a checker with rows left, a lead with claims."""
        fits = life.turns < params.limit[role]
        search = (role != CHECKER) & has_row & fits
        check = jnp.where(role == CHECKER, has_row, (role == LEAD) & (num_claims > 0)) & fits
        return [search, check]

    def claim_bound(self, role: jax.Array, num_claims: jax.Array) -> jax.Array:
        """A checker takes the claims of its window in turn; a lead names one of its newest."""
        return jnp.where(role == CHECKER, 1, num_claims)

    def cost(self, tool: jax.Array, params: SearchParams) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Search and check cost the same and call an outside tool; one critical step each."""
        outside = tool >= FIRST_TASK_TOOL
        return jnp.where(outside, params.call_tokens, 0), jnp.where(outside, 1000, 0), outside

    def act(self, facts: Rows, life: Searcher, working: Working, log: Log, params: SearchParams) -> Worked:
        """One search or check turn of everyone who takes one."""
        searching = (working.tool == SEARCH) & working.has_row
        checking = working.tool == CHECK
        calls = searching | checking
        load = once(lambda calls: jnp.sum(calls).astype(jnp.float32), calls)
        work, outcome, claim = once(
            luck_.draws, working.life_keys, working.turn, (Purpose.WORK, Purpose.OUTCOME, Purpose.CLAIM)
        )
        fault = luck_.share(work[0], 0, 16) < params.fault * jnp.maximum(1.0, load / params.provider_limit)
        found = once(self._search, facts, life, working, searching & ~fault, work, outcome, params)
        nobody = Judged.nothing(checking)
        judged = where_needed(
            jnp.any(checking), self._check, nobody, facts, life, working, checking & ~fault, work[1], log, params
        )
        made, accepted = found.made, judged.accepted
        garbled = luck_.share(claim[0], 0, 12) < params.garble
        code = jnp.where(searching, ResultCode.IN_PROGRESS, ResultCode.NOTHING)
        code = jnp.where(found.finishes, jnp.where(made, ResultCode.FOUND, ResultCode.EMPTY), code)
        code = jnp.where(checking, jnp.where(judged.target >= 0, ResultCode.REFUSED, ResultCode.EMPTY), code)
        code = jnp.where(judged.judges, jnp.where(accepted, ResultCode.ACCEPTED, ResultCode.REJECTED), code)
        code = jnp.where(calls & fault, ResultCode.FAULT, code)
        good = jnp.where(searching, ~found.knew, judged.judges)
        flags = jnp.where(judged.judges, claims_.VERDICT | jnp.where(accepted, claims_.ACCEPT, 0), 0)
        flags = jnp.where(made & found.obeyed, claims_.TAINTED, flags)
        flags = jnp.where(made & found.poisoned, claims_.TAINTED | claims_.UNTRUSTED, flags)
        verdict = jnp.where(judged.judges, jnp.where(judged.right, 1.0, -1.0), 0.0)
        row, k = claims_.row_and_k(judged.target, self.per_row)
        moves_on, row_done = judged.moves_on, judged.row_done
        return Worked(
            life=replace(
                life,
                turns=life.turns + calls,
                row=jnp.where(searching, jnp.where(found.finishes, -1, working.row), life.row),
                left=jnp.where(searching, found.left, life.left),
                next_claim=jnp.where(moves_on, jnp.where(row_done, 0, judged.first + 1), life.next_claim),
            ),
            claims=NewClaims(
                made=made | judged.judges,
                row=jnp.where(judged.judges, row, working.row),
                value=jnp.where(judged.judges, k, found.value),
                confidence=jnp.where(judged.judges, 2**15, found.confidence),
                luck=claim[1],
                flags=flags,
                twin=made & garbled,
                twin_value=_other_wrong(found.value, found.truth, claim[0]),
            ),
            advance=found.finishes | row_done,
            code=code,
            value=jnp.where(made, found.value, -1),
            useful=jnp.where(calls & ~fault, jnp.where(good, 1.0, -1.0), 0.0),
            role=jnp.where(made, jnp.where(found.right, 1.0, -1.0), verdict),
            verdict=verdict,
        )

    def _search(
        self,
        facts: Rows,
        life: Searcher,
        working: Working,
        works: jax.Array,
        work: tuple[jax.Array, jax.Array],
        outcome: tuple[jax.Array, jax.Array],
        params: SearchParams,
    ) -> Found:
        """A row takes some turns of bool[N] `works`; then one uniform decides what is found."""
        row, met = working.row, facts.at(working.row)
        goes_on = (life.row == row) & (life.left > 0)
        left = jnp.where(goes_on, life.left, params.length[luck_.field(work[0], 16, 10)])
        left = left - works.astype(jnp.int32)
        finishes = works & (left == 0)
        q = params.q[jnp.minimum(life.turns, MAX_TURNS - 1)]
        q = q * jnp.where(met.hard, params.hard_factor, 1.0)
        q = q * jnp.where(life.understood, 1.0, params.lost_factor)
        q = jnp.where(met.answerable, q, 0.0)
        wrong_rate = params.wrong_rate[life.understood.astype(jnp.int32)]
        common = luck_.share(work[1], 0, 8) < params.correlation
        u = jnp.where(common, met.common, luck_.unit(work[1]))
        right = u < q
        is_modal = luck_.share(outcome[0], 0, 10) < params.modal
        other = _around(met.modal + 1 + luck_.below(outcome[0], 10, 12, 6), 7)
        offset = jnp.where(is_modal, met.modal, other)
        value = jnp.where(right, met.truth, (met.truth + 1 + offset) & (NUM_VALUES - 1))
        poisoned = met.poisoned & (luck_.share(outcome[0], 22, 10) < params.poison_hit)
        obeyed = self._obeys(facts, working, params)
        planted = poisoned | obeyed
        looks_right = (right | planted).astype(jnp.int32)
        return Found(
            finishes=finishes,
            made=finishes & (u < q + (1.0 - q) * wrong_rate),
            left=left,
            value=jnp.where(planted, met.poison, value),
            truth=met.truth,
            right=right & ~planted,
            confidence=params.confidence[looks_right, luck_.field(outcome[1], 0, 10)],
            poisoned=poisoned,
            obeyed=obeyed,
            knew=_row_bits(working.known, row, self.per_row) != 0,
        )

    def _obeys(self, facts: Rows, working: Working, params: SearchParams) -> jax.Array:
        """bool[N]: lives that know a claim with an instruction and follow it: one draw per life.

        The instruction comes from a page of an injected row, and goes along with whatever is claimed in its service.
        """
        if not self.injects:
            return jnp.zeros_like(working.has_row)
        whole = jnp.where((facts.packed >> INJECTED) & 1 == 1, 2**self.per_row - 1, 0)
        carries = working.tainted & (~working.untrusted | claims_.pack(whole, self.per_row))
        meets = jnp.any((working.known & carries) != 0, axis=-1)
        word, _ = luck_.threefry(*working.life_keys, jnp.zeros_like(working.turn), jnp.uint32(Purpose.OBEY))
        return meets & (luck_.unit(word) < params.obey)

    def _check(
        self,
        facts: Rows,
        life: Searcher,
        working: Working,
        works: jax.Array,
        word: jax.Array,
        log: Log,
        params: SearchParams,
    ) -> Judged:
        """One verdict per checker and claim, of those in bool[N] `works`."""
        per_row, row = self.per_row, working.row
        argument = jnp.clip(working.argument, 0, working.newest.shape[1] - 1)
        named = jnp.take_along_axis(working.newest, argument[:, None], axis=1)[:, 0]
        is_checker = working.role == CHECKER

        def aim(named: jax.Array) -> tuple[jax.Array, ...]:
            group = _row_bits(working.known, row, per_row) & _row_bits(working.claims[None], row, per_row)
            group = group & ~((jnp.uint32(1) << life.next_claim.astype(jnp.uint32)) - jnp.uint32(1))
            first = jnp.where(group != 0, _trailing_zeros(group), -1)
            target = jnp.where(is_checker, jnp.where(first >= 0, row * per_row + first, -1), named)
            return group, first, target, *claims_.row_and_k(target, per_row)

        group, first, target, target_row, target_k = once(aim, named)
        entry = claims_.entry(log, target)
        judged = facts.at(target_row)
        is_right = (entry.value == judged.truth) & judged.answerable & ((entry.flags & claims_.TAINTED) == 0)
        luck = luck_.unit(word)
        accepts_right = luck < params.check_accept[judged.hard.astype(jnp.int32)]
        repeat = jnp.zeros_like(works)
        for k in range(per_row):
            there = claims_.entry(log, target_row * per_row + k)
            own = ((there.flags & claims_.VERDICT) != 0) & (there.origin == working.uid)
            repeat = repeat | (own & (there.value == target_k))
        accepted = jnp.where(is_right, accepts_right, luck >= params.check_reject)
        moves_on = works & is_checker
        rest = group & (group - jnp.uint32(1))
        return Judged(
            target=target,
            first=first,
            judges=works & (target >= 0) & ~repeat,
            right=accepted == is_right,
            accepted=accepted,
            moves_on=moves_on,
            row_done=moves_on & (rest == 0),
        )

    # Answers -----------------------------------------------------------------------------------------------------

    def aggregate(
        self, facts: Rows, log_facts: Facts, votes: Votes, rule: jax.Array, params: SearchParams
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Merge rows by one of `RULES`; see the card for what each does."""
        is_rule = lambda name: (rule == RULES.index(name))[:, None]  # noqa: E731
        verdict, best, last, union = (is_rule(name) for name in ("verdict", "best", "last", "union"))
        score = []
        for k in range(self.per_row):
            net, origins = votes.accepts[k] - votes.rejects[k], votes.origins[k]
            points = jnp.where(verdict, origins + net, origins)
            points = jnp.where(best, net * 64 + origins, points)
            score.append(jnp.where(last, k, points))
        winner = claims_.winner(score, votes.known, log_facts, facts.tie)
        won = claims_.at(log_facts.value, winner, -1)
        right = jnp.zeros_like(winner)
        every, same = jnp.zeros_like(winner), jnp.zeros_like(winner)
        for k in range(self.per_row):
            held = (votes.known >> k) & 1
            value = log_facts.value[k]
            right = right | (held * (value == facts.truth))
            every = every | jnp.where(held == 1, 1 << value, 0)
            same = same | jnp.where(value == won, held << k, 0)
        all_wrong = (winner >= 0) & ~((right == 1) & facts.answerable)
        rejected = all_wrong & ~last & ~union & (facts.reject < params.reject_wrong)
        stands = (winner >= 0) & ~rejected
        answer = jnp.where(union, every, jnp.where(stands, 1 << jnp.maximum(won, 0), 0))
        keep = jnp.where(union, votes.known, jnp.where(stands, same, 0))
        return answer, jnp.where(rejected, -1, winner), keep

    def quality(self, facts: Rows, answer: jax.Array) -> jax.Array:
        """item-F1 = 2 right / (reported + answerable); 1 if nothing is answerable and nothing reported."""
        right, reported = _score(facts, answer)
        return _f1(jnp.sum(right), jnp.sum(reported), jnp.sum(facts.answerable))

    def gains(self, facts: Rows, old: jax.Array, new: jax.Array) -> jax.Array:
        """Telescoping differences of item-F1 as rows of `new` replace rows of `old`, in row order."""
        (right_old, reported_old), (right_new, reported_new) = once(lambda *a: [_score(facts, x) for x in a], old, new)
        # One prefix sum of both: right answers in the upper, reported ones in the lower half of a word.
        before, after = (right_old << 16) + reported_old, (right_new << 16) + reported_new
        total = jnp.sum(before) + jnp.cumsum(after - before)
        right, reported = total >> 16, total & 0xFFFF
        after = _f1(right, reported, jnp.sum(facts.answerable))
        return after - jnp.concatenate([self.quality(facts, old)[None], after[:-1]])

    def best_quality(self, facts: Rows, values: list[jax.Array], told: jax.Array) -> jax.Array:
        """item-F1 of reporting exactly the rows whose right value is among claims int32[M] (K bits)."""
        right = jnp.zeros_like(told)
        for k in range(self.per_row):
            right = right | (((told >> k) & 1) * (values[k] == facts.truth))
        total = jnp.sum(right * facts.answerable)
        return _f1(total, total, jnp.sum(facts.answerable))

    def resolved(self, facts: Rows, board: Any, answer: jax.Array) -> jax.Array:
        """Rows with several values known to the root whose answer is the right value alone."""
        return (board.values > 1) & facts.answerable & (answer == (1 << facts.truth))

    def coach(self, **options: Any) -> Any:
        """A rubric of right and wrong work; options are its fields."""
        from ddpomdp_envs.answers_coach import Rubric

        return Rubric(**options)

    def info(self, facts: Rows, answer: jax.Array) -> dict[str, jax.Array]:
        """row_f1 over groups of eight rows all right, success (all right), and the parts of item-F1."""
        right, reported = _score(facts, answer)
        fine = jnp.where(facts.answerable, (right == 1) & (reported == 1), reported == 0)
        pad = -self.num_rows % GROUP_ROWS
        group = lambda flags, fill: jnp.pad(flags, (0, pad), constant_values=fill).reshape(-1, GROUP_ROWS)  # noqa: E731
        whole = jnp.all(group(fine, True), axis=-1)
        wanted = jnp.any(group(facts.answerable, False), axis=-1)
        given = jnp.any(group(reported > 0, False), axis=-1)
        right_groups = jnp.sum(whole & wanted)
        return {
            "row_f1": _f1(right_groups, jnp.sum(given), jnp.sum(wanted)),
            "success": jnp.all(fine).astype(jnp.float32),
            "right": jnp.sum(right, dtype=jnp.int32),
            "reported": jnp.sum(reported, dtype=jnp.int32),
            "answerable": jnp.sum(facts.answerable, dtype=jnp.int32),
        }

    # Agents ------------------------------------------------------------------------------------------------------

    def observe(self, life: Searcher, params: SearchParams) -> list[jax.Array]:
        """The own context's fill, and whether a row is in progress."""
        return [life.turns.astype(jnp.float32) / 100.0, (life.row >= 0).astype(jnp.float32)]

    def worker_turn(self, harness: Any, legal: Legal) -> jax.Array:
        """Searchers search and checkers check while they may; then they return what is new, in full; else they wait."""
        turns = jnp.zeros((legal.tools.shape[0], 1 + harness.num_args), jnp.int32)
        back = jnp.asarray(harness.turn("return", claims="new", detail="full"))
        may = lambda tool: ((legal.tools >> tool) & 1 == 1)[:, None]  # noqa: E731
        turns = jnp.where(may(RETURN), back, turns)
        turns = jnp.where(may(CHECK), jnp.asarray(harness.turn("check")), turns)
        return jnp.where(may(SEARCH), jnp.asarray(harness.turn("search")), turns)


def _other_wrong(value: jax.Array, truth: jax.Array, word: jax.Array) -> jax.Array:
    """A value that is neither right nor `value`."""
    offset = (value - truth - 1) & (NUM_VALUES - 1)  # 7 if right, else 0..6
    from_right = luck_.below(word, 12, 16, 7)
    from_wrong = _around(offset + 1 + luck_.below(word, 12, 16, 6), 7)
    return (truth + 1 + jnp.where(offset == 7, from_right, from_wrong)) & (NUM_VALUES - 1)


def _around(x: jax.Array, n: int) -> jax.Array:
    """x modulo n, of x in 0 .. 2 n - 1."""
    return jnp.where(x >= n, x - n, x)


def _row_bits(words: jax.Array, row: jax.Array, per_row: int) -> jax.Array:
    """uint32[N]: the bits of a row in sets uint32[N or 1, W]."""
    place = row * per_row
    word = jnp.take_along_axis(jnp.broadcast_to(words, (row.shape[0], words.shape[1])), (place >> 5)[:, None], 1)[:, 0]
    return (word >> (place & 31).astype(jnp.uint32)) & jnp.uint32(2**per_row - 1)


def _trailing_zeros(word: jax.Array) -> jax.Array:
    """int32: index of the lowest set bit."""
    return jax.lax.population_count((word & (~word + jnp.uint32(1))) - jnp.uint32(1)).astype(jnp.int32)


def _score(facts: Rows, answer: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(right int32[M] 0 or 1, reported int32[M]) of an answer."""
    right = ((answer >> facts.truth) & 1) * facts.answerable
    return right.astype(jnp.int32), jax.lax.population_count(answer)


def _f1(right: jax.Array, reported: jax.Array, wanted: jax.Array) -> jax.Array:
    """2 right / (reported + wanted), 1 if both are 0."""
    total = (reported + wanted).astype(jnp.float32)
    return jnp.where(total > 0, 2.0 * right.astype(jnp.float32) / jnp.maximum(total, 1.0), 1.0)
