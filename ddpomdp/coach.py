"""Coaches: scores of single actions by somebody who reads along (MAPPA, arXiv 2601.23228); channel `process`.

A coach speaks when an episode is over, so its scores are no part of `step`: `watch` plays an episode and keeps what a
coach may read, `Coach.score` gives 0 to 10 per action, and `process` makes a channel of it. Learners do the same with
the episodes they play. A rubric in code and a language model are both coaches; a task's own is `coach_of(env)`.

Axis letters: T tick, N slot.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.harness import FIRST_TASK_TOOL, RETURN
from ddpomdp.options import UsageError, refusal
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.pytree import pytree, replace
from ddpomdp.rollouts import Batch, renewed
from ddpomdp.state import State
from ddpomdp.timestep import CHANNELS, TimeStep

RIGHT, WRONG = 1, 2  # lines of the log of a task that keeps none


@pytree
class Actions:
    """What a coach reads of an episode."""

    uid: jax.Array  # int32[T,N]   -1: nobody
    role: jax.Array  # int32[T,N]
    tool: jax.Array  # int32[T,N]   as called; -1 for forced waits, idle lives and ticks after the end
    valid: jax.Array  # bool[T,N]    False: an illegal turn
    code: jax.Array  # int32[T,N]   ResultCode, as its caller was told
    tokens: jax.Array  # int32[T,N]   written
    log: jax.Array  # int32[T,N]   the task's artefact log; where it keeps none: 1 right work, 2 wrong, 0 neither
    info: dict[str, jax.Array]  # scalars    TimeStep.info at the end


class Coach(Protocol):
    """Scores actions."""

    def score(self, actions: Actions, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(f32[T, N] in 0 to 10, bool[T, N] which actions are scored) of an episode; `key`: its own luck."""
        ...


def coach_of(env: Env, **options: Any) -> Coach:
    """The coach of an environment's task; options are the coach's own.

    Raises:
      UsageError: the task has none, or one without such options.
    """
    make = getattr(env.rules.task, "coach", None)
    if make is None:
        raise UsageError(f"{env.id} has no coach, so channel 'process' cannot be paid; allowed: tasks with a coach")
    try:
        return make(**options)
    except TypeError:
        known = [name for name in vars(make()) if not name.startswith("_")]
        unknown = next((name for name in options if name not in known), None)
        if unknown is None:
            raise
        raise UsageError(refusal("option of the coach", unknown, known)) from None


def watch(
    env: Env,
    policy: Policy,
    params: Any,
    key: jax.Array,
    num_ticks: int,
    luck: jax.Array | None = None,
    env_params: Params | None = None,
) -> Actions:
    """Play the episode that `rollout` plays with the same arguments, and keep what a coach reads."""
    luck = jax.random.fold_in(key, 1) if luck is None else luck
    noise = jax.random.fold_in(luck, 2)
    state, ts = env.reset(key, luck, env_params)

    def tick(carry: tuple, _: None) -> tuple[tuple, Actions]:
        state, ts, memory = carry
        turns, memory, _ = policy.act(params, noise, memory, ts)
        after, next_ts = env.step(luck, state, turns, env_params)
        return (after, next_ts, renewed(env, policy, memory, ts, next_ts)), read(env, state, ts, next_ts, after)

    start = (state, ts, policy.carry(env))
    (_, last, _), seen = jax.lax.scan(tick, start, None, length=num_ticks)
    return replace(seen, info=last.info)


def read(env: Env, before: State, ts: TimeStep, next_ts: TimeStep, after: State) -> Actions:
    """What a coach reads of one tick, [N] each, with no `info` yet."""
    keeps = getattr(env.rules.task, "artefacts", None)
    idle = before.lives.returned | ts.blocked | ts.last
    events = next_ts.events
    acts = (events.uid >= 0) & ~idle
    tool = events.tokens[:, 0]
    logged = acts & events.valid & ((tool >= FIRST_TASK_TOOL) | (tool == RETURN))
    right = next_ts.channels["role"]
    log = keeps(after.lives.task) if keeps else jnp.where(right > 0, RIGHT, jnp.where(right < 0, WRONG, 0))
    return Actions(
        uid=jnp.where(acts, events.uid, -1),
        role=events.role,
        tool=jnp.where(acts, tool, -1),
        valid=events.valid,
        code=events.result_code,
        tokens=jnp.sum(events.cost_tokens, axis=-1),
        log=jnp.where(logged, log, 0),
        info={},
    )


def coached(coach: Coach, batch: Batch, luck: jax.Array) -> jax.Array:
    """f32[T,B,N]: channel `process` of the episodes; the coach's own luck is fold_in(luck, 3)."""
    over = jnp.arange(batch.noted.uid.shape[0])[:, None, None] >= batch.ticks[:, None]
    nobody = lambda x: jnp.where(over, -1, x)  # noqa: E731
    noted = replace(batch.noted, uid=nobody(batch.noted.uid), tool=nobody(batch.noted.tool))
    actions = replace(noted, info=batch.ts.info)
    # What was noted is [T,B,N], the ends are [B]: a coach reads one episode.
    axes = replace(jax.tree.map(lambda x: 1, actions), info=jax.tree.map(lambda x: 0, actions.info))
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 3))(luck)
    score, scored = jax.vmap(coach.score, in_axes=(axes, 0), out_axes=1)(actions, keys)
    return process(score, scored)


def process(score: jax.Array, scored: jax.Array) -> jax.Array:
    """f32[T, N]: the channel `process` of one episode, a tenth of the score of each scored action."""
    return jnp.where(scored, score / 10, 0.0)


def reward(channels: dict[str, jax.Array], score: jax.Array, scored: jax.Array, weights: dict[str, Any]) -> jax.Array:
    """f32[T, N]: a rollout's reward with the coach's channel in it, by the weights of the environment's params."""
    with_coach = {**channels, "process": process(score, scored)}
    return sum((weights[name] * with_coach[name] for name in CHANNELS), start=jnp.zeros_like(score))
