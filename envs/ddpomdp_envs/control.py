"""Control worlds: teams whose every number is known, so that estimators can be judged. The family's one task.

A lead hands subtasks to its workers. A subtask takes some calls of `work`, each with a choice of 0 or 1; the choices
alone say how likely it turns out right. Three outcome laws make a quality of what the lead has read:

    Additive-v0   sum_m w_m x_m                                  every subtask adds its weight
    Majority-v0   1 if sum_m x_m > threshold k, 1/2 if equal     most of the k subtasks reported must be right
    Chain-v0      (k / M) prod_m x_m                             all of the k subtasks reported must be right

with x_m = 1 if subtask m was reported and is right. Closed forms stand in control_exact.py, the card in
cards/control.md.

Axis letters: N slot, M row (subtask), K claim of a row (one), P parent place.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp import luck as luck_
from ddpomdp.claims import Facts, Log, NewClaims, Votes
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, Argument, Legal, Tool
from ddpomdp.luck import Purpose
from ddpomdp.pytree import pytree, replace
from ddpomdp.task import Worked, Working

LEAD, WORKER = range(2)
WORK = FIRST_TASK_TOOL
LAWS = ("Additive-v0", "Majority-v0", "Chain-v0")
ROLES = ("lead", "worker")
CHOICES = (0, 1)

_SCORES = {
    "Additive-v0": "the sum of the weights of the right subtasks; all weights are equal unless one was made decisive",
    "Majority-v0": "1 if more than a threshold share of the reported subtasks are right, 1/2 if as many, else 0",
    "Chain-v0": "the share of subtasks reported if every one of them is right, else 0",
}


@pytree
class ControlParams:
    """Numbers of the laws."""

    chances: jax.Array  # f32[2]    chance of a right subtask, by choice; the mean over a subtask's choices counts
    weights: jax.Array  # f32[M]    of subtasks in Additive-v0, sum 1
    threshold: jax.Array  # f32[]     of Majority-v0
    call_tokens: jax.Array  # int32[]   work


@pytree
class Labels:
    """Facts of an episode. Axis M."""

    truth: jax.Array  # int32[M]   the right value, 0 or 1: labels leak nothing
    weights: jax.Array  # f32[M]    of the law, for `quality`
    threshold: jax.Array  # f32[]


@pytree
class Worker:
    """Fields per life. Axis N."""

    calls: jax.Array  # int32[N]   calls made on the subtask at the cursor
    chance: jax.Array  # f32[N]     sum of the chances of its choices that count


class Control:
    """The task; see `ddpomdp.task.Task` for what each method is asked."""

    roles: tuple[str, ...] = ROLES
    spawnable: tuple[str, ...] = ("worker",)
    rules: tuple[str, ...] = ("last",)
    per_row = 1
    num_values = 2
    self_features: tuple[str, ...] = ("calls_on_subtask",)
    hands_claims = False

    def __init__(self, law: str, num_rows: int, *, decisions: int, irrelevant: int, alone: bool):
        """Static sizes.

        Args:
          law: one of `LAWS`.
          num_rows: M.
          decisions: calls per subtask whose choices count.
          irrelevant: calls per subtask before these, whose choices count nothing.
          alone: the lead works itself.
        """
        self.name, self.num_rows = law, num_rows
        self.decisions, self.irrelevant, self.alone = decisions, irrelevant, alone
        self.tools = (Tool("work", (Argument("choice", CHOICES),)),)
        self.words: Mapping[str, str] = {
            "task": "Each subtask has one right value, 0 or 1. How it is worked on decides how often it is found.",
            "score": f"The quality is {_SCORES[law]}.",
            "lead": "hands out subtasks, reads what comes back and stops",
            "worker": "works on the subtasks handed to it one after the other and returns what it found",
            "work": f"Work on the next subtask of your own; each takes {decisions + irrelevant} calls.",
            "work.choice": "How to work; one way is better than the other.",
        }

    def init(self, key: jax.Array, luck: jax.Array, params: ControlParams) -> Labels:
        """Draw the labels."""
        lineage = jnp.asarray(luck_.TASK_LINEAGE, jnp.uint32)
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        word, _ = luck_.threefry(*luck_.life_key(key, lineage), row, jnp.uint32(Purpose.ROW))
        return Labels(luck_.field(word, 0, 1), params.weights, params.threshold)

    def life(self, num_slots: int) -> Worker:
        """A newborn has done nothing."""
        return Worker(jnp.zeros(num_slots, jnp.int32), jnp.zeros(num_slots, jnp.float32))

    def brief(
        self, level: jax.Array, words: tuple[jax.Array, jax.Array], params: ControlParams
    ) -> tuple[jax.Array, jax.Array]:
        """Every brief is understood."""
        return jnp.ones(level.shape, bool), jnp.zeros(level.shape, bool)

    def handed(self, life: Worker, handed: jax.Array, understood: jax.Array) -> Worker:
        """New work: the subtask in progress is dropped."""
        return replace(
            life, calls=jnp.where(handed, 0, life.calls), chance=jnp.where(handed, jnp.float32(0), life.chance)
        )

    def takes_claims(self, role: jax.Array) -> jax.Array:
        """Nobody is handed claims."""
        return jnp.zeros(role.shape, bool)

    def legal(
        self, life: Worker, role: jax.Array, has_row: jax.Array, num_claims: jax.Array, params: ControlParams
    ) -> list[jax.Array]:
        """`work` for workers with subtasks left, and for a lead alone."""
        return [has_row & (self.alone | (role == WORKER))]

    def claim_bound(self, role: jax.Array, num_claims: jax.Array) -> jax.Array:
        """No tool names a claim."""
        return jnp.zeros_like(num_claims)

    def cost(self, tool: jax.Array, params: ControlParams) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Every call of `work` costs the same; one critical step each."""
        works = tool == WORK
        return jnp.where(works, params.call_tokens, 0), jnp.where(works, 1_000, 0), jnp.zeros(tool.shape, bool)

    def act(self, facts: Labels, life: Worker, working: Working, log: Log, params: ControlParams) -> Worked:
        """One call: after the last one of a subtask a uniform below the mean chance of its choices makes it right."""
        works = (working.tool == WORK) & working.has_row
        choice = jnp.clip(working.argument, 0, 1)
        counts = works & (life.calls >= self.irrelevant)
        chance = life.chance + jnp.where(counts, params.chances[choice], 0.0)
        calls = life.calls + works.astype(jnp.int32)
        done = works & (calls == self.decisions + self.irrelevant)
        words = luck_.threefry(*working.life_keys, working.turn, jnp.uint32(Purpose.OUTCOME))
        right = luck_.unit(words[0]) * jnp.float32(self.decisions) < chance
        truth = facts.truth[jnp.clip(working.row, 0, self.num_rows - 1)]
        value = jnp.where(right, truth, 1 - truth)
        code = jnp.where(done, ResultCode.FOUND, jnp.where(works, ResultCode.IN_PROGRESS, ResultCode.NOTHING))
        zero = jnp.zeros_like(calls)
        return Worked(
            life=Worker(jnp.where(done, 0, calls), jnp.where(done, jnp.float32(0), chance)),
            claims=NewClaims(
                made=done,
                row=working.row,
                value=value,
                confidence=zero + 2**15,
                luck=words[1],
                flags=zero,
                twin=zero > 0,
                twin_value=zero,
            ),
            advance=done,
            code=code.astype(jnp.int32),
            value=jnp.where(done, value, -1),
            useful=works.astype(jnp.float32),
        )

    def aggregate(
        self, facts: Labels, log_facts: Facts, votes: Votes, rule: jax.Array, params: ControlParams
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The answer is what is known: there is one claim per subtask at most."""
        known = votes.known & 1
        answer = known << log_facts.value[0]
        return answer, known - 1, known

    # Answers ----------------------------------------------------------------------------------------------------

    def quality(self, facts: Labels, answer: jax.Array) -> jax.Array:
        """f32[] by the law, of an answer int32[M]."""
        right, reported, weight = self._parts(facts, answer)
        return self._score(jnp.sum(right * weight), jnp.sum(right), jnp.sum(reported), facts.threshold)

    def gains(self, facts: Labels, old: jax.Array, new: jax.Array) -> jax.Array:
        """f32[M]: differences of the law as rows of `new` replace rows of `old`, in row order."""
        (r0, k0, w), (r1, k1, _) = (self._parts(facts, answer) for answer in (old, new))
        along = lambda a, b: jnp.sum(a) + jnp.cumsum(b - a)  # noqa: E731
        after = self._score(along(r0 * w, r1 * w), along(r0, r1), along(k0, k1), facts.threshold)
        return after - jnp.concatenate([self.quality(facts, old)[None], after[:-1]])

    def best_quality(self, facts: Labels, values: list[jax.Array], told: jax.Array) -> jax.Array:
        """f32[]: the law of what was told, there being one claim per subtask."""
        return self.quality(facts, (told & 1) << values[0])

    def _parts(self, facts: Labels, answer: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        right = ((answer >> facts.truth) & 1).astype(jnp.float32)
        return right, (answer != 0).astype(jnp.float32), facts.weights

    def _score(self, weight: jax.Array, right: jax.Array, reported: jax.Array, threshold: jax.Array) -> jax.Array:
        some = reported > 0
        if self.name == "Additive-v0":
            return jnp.clip(weight, 0.0, 1.0)
        if self.name == "Chain-v0":
            return jnp.where(some & (right == reported), reported / self.num_rows, 0.0)
        line = threshold * reported
        won = (right > line).astype(jnp.float32) + jnp.float32(0.5) * (right == line)
        return jnp.where(some, won, jnp.float32(0))

    def info(self, facts: Labels, answer: jax.Array) -> dict[str, jax.Array]:
        """Right and reported subtasks."""
        right, reported, _ = self._parts(facts, answer)
        return {"right": jnp.sum(right).astype(jnp.int32), "reported": jnp.sum(reported).astype(jnp.int32)}

    # Agents -----------------------------------------------------------------------------------------------------

    def observe(self, life: Worker, params: ControlParams) -> list[jax.Array]:
        """How far the subtask at the cursor is."""
        return [life.calls.astype(jnp.float32) / (self.decisions + self.irrelevant)]

    def worker_turn(self, harness: Any, legal: Legal) -> jax.Array:
        """Workers work the first way while they may, then return what is new; else they wait."""
        turns = jnp.zeros((legal.tools.shape[0], 1 + harness.num_args), jnp.int32)
        may = lambda tool: ((legal.tools >> tool) & 1 == 1)[:, None]  # noqa: E731
        turns = jnp.where(may(RETURN), jnp.asarray(harness.turn("return", claims="new", detail="full")), turns)
        return jnp.where(may(WORK), jnp.asarray(harness.turn("work")), turns)
