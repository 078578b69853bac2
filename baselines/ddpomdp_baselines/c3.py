"""C3: credit of a message from its alternatives, and three diagnostics of such a credit.

Where we differ from arXiv 2603.06859 and its code (EIT-EAST-Lab/C3 628185be): contexts are decisions to speak of a
dynamic team, one per group, instead of a tree over a fixed chain of roles; alternatives are played on with common luck,
once each; and fidelity is measured against a target that shares no episode with the credit.

Axis letters: T tick, G group, N slot, C context, J alternative, S replay.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.credit.plays import player
from ddpomdp.credit.signal import Contexts
from ddpomdp.enums import Decision
from ddpomdp.env import Env
from ddpomdp.options import whole
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.rollouts import Fork, episodes
from ddpomdp.timestep import TimeStep
from ddpomdp_envs.credit_suite import rank_correlation

NOWHERE = -1  # tick of an episode in which nobody spoke
VOCABULARY = 64  # of next actions; others are one
ALPHA = 1.0  # of Laplace's rule
SHUFFLES = 20  # that the floor of the influence is a mean of


def forks(
    env: Env,
    policy: Policy,
    params: Any,
    keys: jax.Array,
    luck: jax.Array,
    num_ticks: int,
    env_params: Params,
    learns: tuple[str, ...],
    *,
    members: int,
) -> Fork:
    """Where each group's members part: at one of the decisions to speak of the episode these keys give.

    The decision is drawn evenly among those of roles that learn. From its tick on there is fresh luck, the same for
    all members, so that it does not matter what happened later in the episode it was found in; in its slot each member
    has noise of its own. An episode without such a decision has no fork: its members are alike and teach nothing.

    Args:
      env: the environment.
      policy: what plays.
      params: its parameters.
      keys: task keys [G].
      luck: keys [G].
      num_ticks: static.
      env_params: numbers of the environment.
      learns: roles.
      members: of a group, static.

    Returns:
      Forks of G x members episodes.
    """
    roles = jnp.asarray([env.spec.roles.index(name) for name in learns])

    def speaks(ts: TimeStep, turns: jax.Array, aux: Any, next_ts: TimeStep) -> jax.Array:
        event = next_ts.events
        own = event.is_decision & event.valid & jnp.isin(event.role, roles)
        return own & (event.decision == Decision.COMMUNICATE)

    found = episodes(env, policy, params, keys, luck, num_ticks, env_params, speaks).recorded  # [T,G,N]
    flat = jnp.moveaxis(found, 1, 0).reshape(keys.shape[0], -1)
    lot = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 8), flat.shape[1:]))(luck)
    place = jnp.argmax(jnp.where(flat, lot, -1.0), axis=1)
    tick = jnp.where(jnp.any(flat, axis=1), place // found.shape[2], NOWHERE)
    after = jax.vmap(lambda key: jax.random.fold_in(key, 9))(luck)
    # An episode that has no fork keeps its luck: tick NOWHERE would have other luck from the start.
    after = jnp.where(tick == NOWHERE, luck, after)
    member = jnp.arange(members, dtype=jnp.uint32)
    own = jax.vmap(lambda key: jax.vmap(lambda m: jax.random.fold_in(jax.random.fold_in(key, 10), m))(member))(luck)
    spread = lambda x: jnp.repeat(x, members, axis=0)  # noqa: E731
    return Fork(
        tick=spread(tick.astype(jnp.int32)),
        slot=spread((place % found.shape[2]).astype(jnp.int32)),
        own=own.reshape(-1),
        luck=spread(after),
    )


# Diagnostics -------------------------------------------------------------------------------------------------------


def diagnose(
    env: Env,
    policy: Policy,
    params: Any,
    key: jax.Array,
    *,
    contexts: int = 64,
    alternatives: int = 8,
    replays: int = 4,
    env_params: Params | None = None,
) -> dict[str, float]:
    """Fidelity, within-context variance and influence of leave-one-out credit, A_j = R_j - mean over others of R_k.

    fidelity   rank correlation, over all alternatives of all contexts, of A_j with its target: the mean return of a_j
               less that of other draws of the policy there, all from episodes that A_j has not seen. The paper's code
               takes the mean over the same alternatives instead, which makes it 1 whatever the credit is worth.
    variance   population variance of A_j over the alternatives of a context, mean over contexts
    influence  mutual information in nats of the alternative and the next event of another agent (what it did and what
               came of it), by context:
               sum_j p(j) sum_y p(y|j) log(p(y|j) / p(y)), Laplace's rule over the `VOCABULARY` most frequent actions
               and the rest; `influence_floor` is what shuffled actions give, the bias of so few replays

    Args:
      env: the environment.
      policy: what plays.
      params: its parameters.
      key: draws everything.
      contexts: episodes; of each the middle decision to speak counts, if it has one.
      alternatives: J, draws of the policy in a context.
      replays: S of each, with luck common to all of a context; 2 at least.
      env_params: numbers to use instead of `env.params`.

    Returns:
      fidelity, variance, influence, influence_floor, contexts (that had a decision), distinct (alternatives in a
      context, mean).

    Raises:
      ValueError: counts out of range, or no decision to speak in any episode.
    """
    whole("contexts", contexts, 2, 1_000_000)
    whole("alternatives", alternatives, 2, 10_000)
    whole("replays", replays, 2, 10_000)
    plays = player(env, policy, params, env_params)
    keys = jax.random.split(key, contexts)
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    found = Contexts(plays, keys, luck, Decision.COMMUNICATE, False)
    count = len(found.turn)

    def draws(salt: int) -> np.ndarray:
        many = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, salt), alternatives))(found.luck)
        return plays.alternatives(many, found.moment, found.slot, False)  # [C, J, 1+A]

    def play(turns: np.ndarray, salt: int) -> tuple[np.ndarray, np.ndarray]:
        """(returns f64[C, J, S], next action of another agent uint32[C, J, S]) with luck common to J."""
        lucks = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, salt), replays))(found.luck)
        c, j, s = (x.ravel() for x in np.indices((count, alternatives, replays)))
        lanes = plays.play_on(found.moment.at(c), lucks[c, s], found.slot[c], turns[c, j])
        shape = count, alternatives, replays
        nexts = np.asarray([_next(log, slot) for log, slot in zip(lanes.log, found.slot[c], strict=True)])
        return lanes.returns.astype(np.float64).reshape(shape), nexts.reshape(shape)

    ours = draws(11)
    returns, nexts = play(ours, 12)
    credit = leave_one_out(returns.mean(axis=2))
    target = play(ours, 13)[0].mean(axis=2) - play(draws(14), 15)[0].mean(axis=(1, 2))[:, None]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 16))).tolist())
    shuffled = [rng.permuted(nexts.reshape(count, -1), axis=1).reshape(nexts.shape) for _ in range(SHUFFLES)]
    return {
        "fidelity": rank_correlation(credit.ravel(), target.ravel()),
        "variance": float(credit.var(axis=1).mean()),
        "influence": float(np.mean([information(y) for y in nexts])),
        "influence_floor": float(np.mean([information(y) for ys in shuffled for y in ys])),
        "contexts": float(count),
        "distinct": float(np.mean([len(np.unique(turns, axis=0)) for turns in ours])),
    }


def leave_one_out(value: np.ndarray) -> np.ndarray:
    """A_j = v_j - (sum over others of v_k) / (J - 1), of f64[..., J]."""
    others = (value.sum(axis=-1, keepdims=True) - value) / (value.shape[-1] - 1)
    return value - others


def information(actions: np.ndarray) -> float:
    """Mutual information in nats of row and value of [J, S], rows equally likely, by Laplace's rule in each row."""
    names, counts = np.unique(actions, return_counts=True)
    common = names[np.argsort(-counts, kind="stable")[:VOCABULARY]]
    table = np.asarray([[np.sum(row == name) for name in common] for row in actions], np.float64)
    if len(names) > len(common):
        table = np.concatenate([table, (actions.shape[1] - table.sum(axis=1))[:, None]], axis=1)
    p = (table + ALPHA) / (table + ALPHA).sum(axis=1, keepdims=True)
    return float(np.mean(np.sum(p * np.log(p / p.mean(axis=0)), axis=1)))


def _next(log: np.ndarray, slot: int) -> int:
    """Hash of the first event after this tick, uint32[T, N], that is another slot's; 0: there is none."""
    others = np.delete(log[1:], slot, axis=1).ravel()
    first = np.flatnonzero(others)
    return int(others[first[0]]) if len(first) else 0
