"""The coach of DataScience-v0: MAPPA's rubric with its caps by metric, and blame read from the artefact log.

Nothing here favours a type of task: that regression is scored higher than classification follows from the two scales of
the caps alone. Axis letters: T tick, N slot, E = T N action in the order of time.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.coach import Actions
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN, WAIT
from ddpomdp.options import choose
from ddpomdp.pytree import pytree
from ddpomdp_envs.coach_slips import check_rates, heard, slips
from ddpomdp_envs.datascience import (
    ANALYST,
    ENGINEER,
    LEAD,
    MODEL,
    MODELER,
    SUBMISSION,
    SUBMIT,
    TRAIN,
    TUNE,
    WRITE,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
    Outcome,
)

SCOPES = ("metric", "submitter", "all")
PUBLISHED_ACCURACY = 0.535  # Who&When's best attribution by agent (arXiv 2505.00212)
# Scores by outcome: of a coach that reads the log, and of one that sees tool results only.
_BASE = {
    Outcome.SAVED: (9, 9),
    Outcome.INCOMPLETE: (4, 4),
    Outcome.FALSE_BELIEF: (1, 8),
    Outcome.CRASH: (4, 4),
    Outcome.NOT_FOUND: (4, 4),
    Outcome.SCHEMA_ERROR: (4, 4),
    Outcome.PATCHED: (9, 9),
    Outcome.NOT_PATCHED: (4, 4),
    Outcome.TUNED: (8, 8),
    Outcome.BROKE: (2, 8),
    Outcome.CHECKED: (6, 6),
    Outcome.RETURN_COMPLETE: (8, 8),
    Outcome.RETURN_NAMING: (6, 6),
    Outcome.RETURN_FALSE: (1, 8),
    Outcome.RETURN_CAP_VICTIM: (4, 4),
    Outcome.RETURN_CAP: (2, 2),
}
ILLEGAL, NEUTRAL = 1, 5


@dataclass(frozen=True)
class Rubric:
    """A simulated coach.

    Attributes:
      scope: whose actions the caps bind: the metric's (train_model, tune, submit and all of the submitter), only the
        submitter's, or all.
      truth: whether it knows the metric and that a submission is invalid; without, no caps, and failure is known only
        where there is no submission file.
      accuracy: probability that it reads the artefact log in an episode; else it blames a life drawn from the others.
      blind: it never reads the log and blames the last speaker.
      noise: standard deviation of a normal added.
      verbosity: points per doubling of the tokens written, from 500.
      self_reinforcement: pull of the same life's previous score, from 6, by a quarter of this.
      parse_failure: probability that a score is lost and 5 stands in.

    The numbers may be arrays, so that a schedule is one `dataclasses.replace` per training step.
    """

    scope: str = "metric"
    truth: bool = True
    accuracy: Any = 1.0
    blind: bool = False
    noise: Any = 0.0
    verbosity: Any = 0.0
    self_reinforcement: Any = 0.0
    parse_failure: Any = 0.0

    def __post_init__(self):
        """Refuse unknown scopes and probabilities that are none."""
        choose("scope", self.scope, SCOPES)
        check_rates(self)

    def score(self, actions: Actions, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(f32[T, N] in 0 to 10, bool[T, N] scored) of one episode, by the rules of the card."""
        k_read, k_other, k_band, *k_slips = jax.random.split(key, 5)
        reads = ~jnp.bool_(self.blind) & (jax.random.uniform(k_read) < self.accuracy)
        log = read_log(actions)
        base = base_scores(actions, log, reads)
        cause, culprit = blamed(actions, log)
        others, scored = jnp.where(culprit < 0, -1, culprit), log.scored
        guess = _other_last(actions, scored, others, k_other)
        cause = jnp.where(reads, cause, guess)
        cause = jnp.where(self.blind, _last(scored), cause)
        valid = actions.info["success"] > 0
        failed = ~valid if self.truth else actions.info["submitted"] == 0
        band = jax.random.randint(k_band, (), 0, 3).astype(jnp.float32)
        judged = jnp.where(failed, _blame(actions, base, cause, band), base)
        if self.truth:
            cap = metric_cap(actions.info["regression"] > 0, actions.info["metric"])
            capped = jnp.minimum(judged, jnp.where(in_scope(actions, self.scope), cap, 10.0))
            judged = jnp.where(valid, capped, judged)
        judged, lost = slips(judged, self.noise, self.parse_failure, k_slips)
        judged = judged + self.verbosity * jnp.log2(jnp.maximum(actions.tokens, 1).astype(jnp.float32) / 500)
        return _settled(actions, scored, judged, lost, self.self_reinforcement), scored


@pytree
class Lines:
    """The artefact log, read. Axes T, N."""

    outcome: jax.Array  # int32[T,N]
    wrote: jax.Array  # int32[T,N]   bits written by the call
    row: jax.Array  # int32[T,N]
    scored: jax.Array  # bool[T,N]    actions of workers, and task tools of a lone lead


def read_log(actions: Actions) -> Lines:
    """The fields of the log's lines."""
    works = actions.tool >= FIRST_TASK_TOOL
    return Lines(
        outcome=actions.log & 31,
        wrote=(actions.log >> 13) & 31,
        row=actions.log >> 18,
        scored=(actions.tool >= 0) & ((actions.role > LEAD) | works),
    )


def base_scores(actions: Actions, log: Lines, reads: jax.Array) -> jax.Array:
    """f32[T, N]: an action's score before anything is known of how the episode ended."""
    table = [[_BASE.get(outcome, (NEUTRAL, NEUTRAL))[i] for outcome in Outcome] for i in (0, 1)]
    plain = jnp.where(reads, jnp.asarray(table[0])[log.outcome], jnp.asarray(table[1])[log.outcome])
    n = actions.uid.shape[1]

    def tick(carry: tuple, x: tuple) -> tuple[tuple, jax.Array]:
        who, in_row, ever, errors, tunes = carry
        uid, tool, outcome, score = x
        here = uid >= 0
        new = here & (uid != who)
        reset = lambda a: jnp.where(new[:, None] if a.ndim > 1 else new, 0, a)  # noqa: E731
        in_row, ever, errors, tunes = map(reset, (in_row, ever, errors, tunes))
        mine = jnp.asarray([WRITE, TRAIN, SUBMIT]) == tool[:, None]  # [N, 3]
        of = lambda a: jnp.sum(jnp.where(mine, a, 0), axis=1)  # noqa: E731
        crash = outcome == Outcome.CRASH
        score = jnp.where((outcome == Outcome.SAVED) & (of(ever) > 0), 8, score)
        score = jnp.where(crash, 4 - jnp.minimum(of(in_row), 2), score)
        kinds = jnp.stack([outcome == Outcome.NOT_FOUND, outcome == Outcome.SCHEMA_ERROR], axis=1)
        score = jnp.where(jnp.any(kinds & (errors > 0), axis=1), 3, score)
        tuned = outcome == Outcome.TUNED
        score = jnp.where(tuned & (tunes >= 3), 6, score)
        in_row = jnp.where(mine & here[:, None], jnp.where(crash[:, None], in_row + 1, 0), in_row)
        ever = ever + (mine & crash[:, None])
        carry = (jnp.where(here, uid, who), in_row, ever, errors + kinds, tunes + tuned)
        return carry, score

    zero = jnp.zeros((n, 3), jnp.int32)
    start = (jnp.full(n, -1, jnp.int32), zero, zero, zero[:, :2], zero[:, 0])
    _, score = jax.lax.scan(tick, start, (actions.uid, actions.tool, log.outcome, plain))
    score = jnp.where(actions.tool == WAIT, NEUTRAL, score)
    score = jnp.where(actions.valid, score, ILLEGAL)
    return score.astype(jnp.float32)


def blamed(actions: Actions, log: Lines) -> tuple[jax.Array, jax.Array]:
    """(event int32[] in E, uid int32[]) that caused a failure, by the log; -1 where nothing fits.

    The first that applies: a submission that does not fit is blamed on the event that wrote X_test; with X_test and
    model there, a last schema error on the same, else the submitter; a missing feature file on the last life with
    write_features as its own tool; a model removed by a tune on that tune; else the last modeler.
    """
    files = actions.info["files"].astype(jnp.int32)
    has = lambda bit: (files & bit) != 0  # noqa: E731
    pick = jnp.maximum(actions.info["pick"].astype(jnp.int32), 0)
    rows = (log.row == pick) | (log.row == 0)
    wrote_test = _last(((log.wrote & X_TEST) != 0) & rows)
    lone = (actions.role == LEAD) & jnp.any((actions.role == LEAD) & (actions.tool >= FIRST_TASK_TOOL))
    by = lambda role, tool: _event_of_life(actions, log, (actions.role == role) | lone, tool)  # noqa: E731
    engineer, modeler, submitter = by(ENGINEER, WRITE), by(MODELER, TRAIN), by(ANALYST, SUBMIT)
    stops = (log.outcome == Outcome.CRASH) | (log.outcome == Outcome.NOT_FOUND) | (log.outcome == Outcome.SCHEMA_ERROR)
    obstacle = _last(stops & (actions.uid == _uid(actions, submitter)))
    misfit = (obstacle >= 0) & (log.outcome.reshape(-1)[obstacle] == Outcome.SCHEMA_ERROR)
    broke = _last(log.outcome == Outcome.BROKE)
    came = _last((log.wrote & MODEL) != 0)
    event = jnp.where((broke > came) & (came >= 0), broke, modeler)
    no_features = ~has(X_TEST) | ~has(X_TRAIN) | ~has(Y_TRAIN)
    event = jnp.where(no_features, engineer, event)
    event = jnp.where(has(X_TEST) & has(MODEL), jnp.where(misfit, wrote_test, submitter), event)
    event = jnp.where(has(SUBMISSION), wrote_test, event)
    return event, _uid(actions, event)


def metric_cap(regression: jax.Array, metric: jax.Array) -> jax.Array:
    """f32[]: the rubric's highest score: by RMSE in % of the range, else by accuracy or AUC [published]."""
    error = jnp.where(metric < 10, 9.0, jnp.where(metric <= 25, 8.0, jnp.where(metric <= 50, 6.0, 4.0)))
    right = jnp.where(metric < 0.55, 3.0, jnp.where(metric < 0.65, 4.0, jnp.where(metric < 0.75, 6.0, 9.0)))
    right = jnp.where((metric >= 0.75) & (metric < 0.85), 8.0, right)
    return jnp.where(regression, error, right)


def in_scope(actions: Actions, scope: str) -> jax.Array:
    """bool[T, N]: actions that the caps bind."""
    submitter = _uid(actions, _last(actions.tool == SUBMIT))
    his = (actions.uid == submitter) & (submitter >= 0)
    if scope == "all":
        return jnp.ones_like(his)
    makes = (actions.tool == TRAIN) | (actions.tool == TUNE) | (actions.tool == SUBMIT)
    return his | makes if scope == "metric" else his


def _event_of_life(actions: Actions, log: Lines, mine: jax.Array, tool: int) -> jax.Array:
    """int32[]: of the last life that acts among bool[T, N]: its last failing call of a tool, or call, or return."""
    mine = mine & (actions.uid == _uid(actions, _last(mine & (actions.tool >= 0))))
    calls = mine & (actions.tool == tool)
    kinds = (Outcome.CRASH, Outcome.INCOMPLETE, Outcome.FALSE_BELIEF)
    fails = calls & ((log.outcome == kinds[0]) | (log.outcome == kinds[1]) | (log.outcome == kinds[2]))
    event = jnp.where(_last(calls) >= 0, _last(calls), _last(mine & (actions.tool == RETURN)))
    return jnp.where(_last(fails) >= 0, _last(fails), event)


def _last(flags: jax.Array) -> jax.Array:
    """int32[]: the last flagged event, -1 none."""
    flat = flags.reshape(-1)
    return jnp.max(jnp.where(flat, jnp.arange(flat.shape[0]), -1))


def _uid(actions: Actions, event: jax.Array) -> jax.Array:
    return jnp.where(event >= 0, actions.uid.reshape(-1)[event], -1)


def _other_last(actions: Actions, scored: jax.Array, culprit: jax.Array, key: jax.Array) -> jax.Array:
    """int32[]: the last action of a life drawn evenly from those that acted but the culprit; -1: nobody."""
    later = jnp.arange(scored.size).reshape(scored.shape)
    uid = actions.uid.reshape(-1)
    order = jnp.where(scored, later, -1).reshape(-1)
    # Every life fills a place of [T, N] at least, so there are fewer uids than places.
    final = jax.ops.segment_max(order, jnp.where(order >= 0, uid, order.size), num_segments=order.size)
    finals = (order >= 0) & (order == final[jnp.maximum(uid, 0)]) & (uid != culprit)
    noise = jax.random.uniform(key, finals.shape)
    return jnp.where(jnp.any(finals), jnp.argmax(jnp.where(finals, noise, -1.0)), -1)


def _blame(actions: Actions, score: jax.Array, cause: jax.Array, band: jax.Array) -> jax.Array:
    """f32[T, N]: 0 to 2 for the cause, at most 5 for what its life did later, 3 to 5 for everybody else afterwards."""
    order = jnp.arange(score.size).reshape(score.shape)
    after = (order > cause) & (cause >= 0)
    own = actions.uid == _uid(actions, cause)
    score = jnp.where(after & own, jnp.minimum(score, 5.0), score)
    score = jnp.where(after & ~own, jnp.clip(score, 3.0, 5.0), score)
    return jnp.where((order == cause) & (cause >= 0), band, score)


def _settled(actions: Actions, scored: jax.Array, score: jax.Array, lost: jax.Array, pull: Any) -> jax.Array:
    """f32[T, N]: with the pull of the same life's previous score, lost scores replaced, clipped to 0..10."""

    def tick(carry: tuple, x: tuple) -> tuple[tuple, jax.Array]:
        who, before = carry
        uid, counts, score, lost = x
        before = jnp.where(uid == who, before, 6.0)
        score = heard(score + pull * (before - 6.0) / 4, lost)
        return (jnp.where(counts, uid, who), jnp.where(counts, score, before)), score

    n = score.shape[1]
    start = (jnp.full(n, -1, jnp.int32), jnp.full(n, 6.0))
    _, score = jax.lax.scan(tick, start, (actions.uid, scored, score, lost))
    return jnp.where(scored, score, 0.0)
