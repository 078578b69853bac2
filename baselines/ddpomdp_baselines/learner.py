"""One update, top to bottom: play groups of episodes, give each decision its advantage, step along the gradient.

What an algorithm is stands in `algorithms`; its operators in `advantages` and `losses`.

Axis letters: T tick, B episode, N slot, A argument position, E entry, C decision of a chunk, R role.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddpomdp.coach import Coach
from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.pytree import pytree, replace
from ddpomdp_baselines import advantages, critics, losses
from ddpomdp_baselines.algorithms import Algorithm
from ddpomdp_baselines.c3 import forks
from ddpomdp_baselines.critics import Critic
from ddpomdp_baselines.experience import Experience, collect, entries, group_keys, sum_over_decisions
from ddpomdp_baselines.network import Network, View


@dataclass(frozen=True)
class Sizes:
    """Static numbers of an update.

    Attributes:
      groups: task draws per update.
      group_size: members of a group; each meets the same task with luck of its own.
      num_ticks: most ticks of an episode.
      chunk: decisions per piece of a gradient.
      lag: how many updates old the behaviour policy is.
      devices: the groups are spread over so many devices.
      learning_rate: of Adam.
      max_norm: gradients are cut to this norm first.
    """

    groups: int = 8
    group_size: int = 8
    num_ticks: int = 256
    chunk: int = 2048
    lag: int = 0
    devices: int = 1
    learning_rate: float = 1e-3
    max_norm: float = 1.0

    @property
    def rule(self) -> optax.GradientTransformation:
        """Adam on gradients cut to a norm."""
        return optax.chain(optax.clip_by_global_norm(self.max_norm), optax.adam(self.learning_rate))


@pytree
class Learner:
    """What training changes, of one seed."""

    params: Any
    optimiser: Any
    past: Any  # params of the last `lag` updates, oldest first: leading axis lag
    update: jax.Array  # int32[]
    skipped: jax.Array  # int32[]   updates in a row that were not finite and changed nothing
    critic: Any = None  # weights and optimiser of the critic, where there is one


def start(params: Any, sizes: Sizes, critic: Critic | None = None, seed: int = 0) -> Learner:
    """A learner before its first update, with a fresh critic if it has one."""
    judge: Any = None if critic is None else critic.init(seed)
    return Learner(
        params=params,
        optimiser=sizes.rule.init(params),
        past=jax.tree.map(lambda x: jnp.broadcast_to(x, (sizes.lag, *x.shape)), params),
        update=jnp.int32(0),
        skipped=jnp.int32(0),
        critic=None if critic is None else (judge, critic.rule.init(judge)),
    )


@dataclass(frozen=True)
class Update:
    """One update of one seed.

    Attributes:
      env: where episodes are played.
      network: what learns.
      algorithm: a row of the table.
      sizes: static numbers.
      learns: roles whose decisions are learned from.
      coach: pays channel `process` after the episodes; None: nobody does.
      critic: judges the steps that signal "gae" learns from, see `critic_of`.
    """

    env: Env
    network: Network
    algorithm: Algorithm
    sizes: Sizes
    learns: tuple[str, ...]
    coach: Coach | None = None
    critic: Critic | None = None

    def __call__(
        self, learner: Learner, key: jax.Array, anchor: Any, env_params: Params
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """The learner after the update, and f32[] facts about it.

        Args:
          learner: before the update.
          key: of the run; update u plays with fold_in(key, u).
          anchor: parameters of the policy that a KL term pulls towards.
          env_params: numbers of the environment with the channel weights in force.
        """
        data = self.play(learner, key, env_params)
        learns = jnp.isin(data.role, jnp.asarray([self.env.spec.roles.index(name) for name in self.learns]))
        if data.forked is not None:
            learns = learns & data.forked
        if self.algorithm.kl_weight and self.algorithm.kl_where == "reward":
            data = self.penalised(data, learns, anchor)
        critic, of_critic = learner.critic, {}
        if self.critic is not None:
            data, critic, of_critic = self.judge(critic, data, learns)
        advantage, weight, statistics = self.credit(data, learns)

        params, state, metrics = learner.params, learner.optimiser, {}
        for epoch in range(self.algorithm.epochs):
            gradient, sums = self.gradient(params, data, learns, advantage, weight, anchor)
            change, state = self.sizes.rule.update(gradient, state, params)
            params = optax.apply_updates(params, change)
            if epoch == 0:
                metrics = self.metrics(data, sums, gradient)
        fine = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((params, state, critic))]
        fine = jnp.all(jnp.asarray(fine))
        keep = lambda new, old: jnp.where(fine, new, old)  # noqa: E731
        before = learner.params, learner.optimiser, learner.critic
        params, state, critic = jax.tree.map(keep, (params, state, critic), before)
        past = jax.tree.map(lambda old, new: jnp.concatenate([old, new[None]])[1:], learner.past, learner.params)
        return (
            Learner(
                params=params,
                optimiser=state,
                past=past,
                update=learner.update + 1,
                skipped=jnp.where(fine, 0, learner.skipped + 1),
                critic=critic,
            ),
            {**metrics, **statistics, **of_critic, "skipped": (~fine).astype(jnp.float32)},
        )

    def play(self, learner: Learner, key: jax.Array, env_params: Params) -> Experience:
        """The groups of this update's episodes, by the behaviour policy."""
        sizes, key = self.sizes, jax.random.fold_in(key, learner.update)
        behaviour = jax.tree.map(lambda x: x[0], learner.past) if sizes.lag else learner.params
        keys, luck, group = group_keys(key, sizes.groups, sizes.group_size)
        if sizes.devices > 1:
            mesh = jax.sharding.Mesh(jax.devices()[: sizes.devices], ("episode",))
            spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("episode"))
            keys, luck, group = jax.lax.with_sharding_constraint((keys, luck, group), spread)
        fork = None
        if self.algorithm.signal == "counterfactual":
            luck = jnp.repeat(luck[:: sizes.group_size], sizes.group_size)  # one prefix per group
            firsts = keys[:: sizes.group_size], luck[:: sizes.group_size]
            args = self.env, self.network, behaviour, *firsts, sizes.num_ticks, env_params, self.learns
            fork = forks(*args, members=sizes.group_size)
        args = self.env, self.network, behaviour, keys, luck, group, sizes.num_ticks, env_params
        reads = self.critic is not None and self.critic.reads == "prefix"
        trace = (self.critic.fold, self.critic.rows) if self.critic is not None and reads else None
        return collect(*args, signal=self.algorithm.signal, coach=self.coach, fork=fork, trace=trace)

    def judge(
        self, critic: tuple[Any, Any], data: Experience, learns: jax.Array
    ) -> tuple[Experience, tuple[Any, Any], dict[str, jax.Array]]:
        """(the experience with the advantage of each step, the critic after its own steps, facts about it).

        Values are those of the critic before, which has not seen these episodes.
        """
        judge, sizes = self.critic, self.sizes
        assert judge is not None
        value, paid = judge.values(critic[0], data, learns, sizes.chunk), critics.to_go(data, learns)
        judged, target = critics.judged(data, value, learns, self.algorithm.decay)

        def step(now: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], jax.Array]:
            params, state, loss = judge.step(*now, data, learns, target, sizes.chunk)
            return (params, state), loss

        after, loss = jax.lax.scan(step, critic, None, length=self.algorithm.critic_steps)
        told = {
            "value_loss": loss[0],
            "value_explained": critics.explained(value, paid, data.decides & learns),
            "rows_dropped": jnp.float32(0) if data.prefix is None else jnp.mean(data.prefix.dropped),
        }
        return judged, after, told

    def penalised(self, data: Experience, learns: jax.Array, anchor: Any) -> Experience:
        """The experience with the divergence from the anchor, summed over a call's tokens, taken off its value."""
        rule, size = self.algorithm, data.returns.size

        def penalty(seen: View, entry: jax.Array, real: jax.Array) -> jax.Array:
            reference = self.network.score(anchor, seen, entries(data.turns)[entry])
            counts = reference.choice & real[:, None]
            each = losses.kl(entries(data.logp)[entry], reference.logp, counts, estimator=rule.kl)
            return jnp.zeros(size).at[jnp.where(real, entry, size)].add(jnp.sum(each, axis=-1), mode="drop")

        total = sum_over_decisions(penalty, data, learns, self.sizes.chunk)
        return replace(data, returns=data.returns - rule.kl_weight * total.reshape(data.returns.shape))

    def credit(self, data: Experience, learns: jax.Array) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """(advantage f32[E], weight of each token f32[E], facts about the statistics)."""
        rule, sizes = self.algorithm, self.sizes
        episode = jnp.broadcast_to(jnp.arange(data.group.shape[0], dtype=jnp.int32)[:, None], data.role.shape)
        group = jnp.broadcast_to(data.group[:, None], data.role.shape)
        mask = entries(data.decides & learns)
        roles = len(self.env.spec.roles)
        trajectory, agent = entries(episode), entries(data.role)
        advantage, stats = advantages.normalise(
            entries(data.returns),
            trajectory=trajectory % sizes.group_size,  # members are numbered anew in every group
            agent=agent,
            group=entries(group),
            mask=mask,
            sample=rule.sample,
            tokens=entries(data.tokens).astype(jnp.float32),
            center=rule.center,
            center_scope=rule.center_scope,
            scale=rule.scale,
            scale_scope=rule.scale_scope,
            ddof=rule.ddof,
            eps=rule.eps,
            sizes=(sizes.groups, roles, sizes.group_size),
        )
        weight = losses.token_weights(
            entries(data.tokens).astype(jnp.float32),
            trajectory=trajectory,
            agent=agent,
            mask=mask,
            mode=rule.aggregation,
            constant=rule.constant,
            sizes=(roles, sizes.groups * sizes.group_size),
        )
        return advantage, weight, cell_facts(stats, mask, agent, self.env.spec.roles)

    def gradient(
        self, params: Any, data: Experience, learns: jax.Array, advantage: jax.Array, weight: jax.Array, anchor: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        """(gradient of the loss, sums over decisions), a chunk of decisions at a time."""
        rule = self.algorithm

        def loss(params: Any, seen: View, entry: jax.Array, real: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            turns, old = entries(data.turns)[entry], entries(data.logp)[entry]
            spoken = self.network.score(params, seen, turns)
            counts = spoken.choice & real[:, None]
            log_ratio = losses.token_log_ratio(spoken.logp, old, counts)
            token = losses.policy_loss(
                spoken.logp,
                log_ratio,
                jnp.broadcast_to(advantage[entry][:, None], old.shape),
                counts,
                rule=rule.ratio,
                low=rule.clip_low,
                high=rule.clip_high,
                dual=rule.dual_clip,
            )
            total = token - rule.entropy * spoken.entropy if rule.entropy else token
            if rule.kl_weight and rule.kl_where == "loss":
                reference = self.network.score(anchor, seen, turns).logp
                total = total + rule.kl_weight * losses.kl(spoken.logp, reference, counts, estimator=rule.kl)
            share = jnp.where(counts, weight[entry][:, None], 0.0)
            return jnp.sum(share * total), {
                "loss": jnp.sum(share * token),
                "entropy": jnp.sum(jnp.where(counts, spoken.entropy, 0.0)),
                "kl_behaviour": -jnp.sum(log_ratio),
                "count": jnp.sum(counts.astype(jnp.float32)),
            }

        part = jax.grad(loss, has_aux=True)
        return sum_over_decisions(
            lambda seen, entry, real: part(params, seen, entry, real), data, learns, self.sizes.chunk
        )

    def metrics(self, data: Experience, sums: dict[str, jax.Array], gradient: Any) -> dict[str, jax.Array]:
        """Means over episodes and tokens; `simulated_*` are totals of this update."""
        per_token = lambda name: sums[name] / jnp.maximum(sums["count"], 1.0)  # noqa: E731
        means = {name: jnp.mean(value) for name, value in data.facts.items()}
        return {
            **means,
            "simulated_tokens": jnp.sum(data.facts["tokens"]),
            "simulated_s": jnp.sum(data.facts["wall_s"]),
            "episodes": jnp.float32(data.group.shape[0]),
            "loss": sums["loss"],
            "entropy": per_token("entropy"),
            "kl_behaviour": per_token("kl_behaviour"),
            "gradient_norm": norm(gradient),
        }


def critic_of(env: Env, algorithm: Algorithm, width: int) -> Critic | None:
    """The critic that a row of the table asks for."""
    if algorithm.critic == "none":
        return None
    rule = algorithm
    return Critic(env, width, rule.critic, rule.fold, rule.rows, rule.critic_rate)


def norm(tree: Any) -> jax.Array:
    """f32[], root of the sum of squares of all leaves."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def cell_facts(
    stats: advantages.Stats, mask: jax.Array, role: jax.Array, roles: tuple[str, ...]
) -> dict[str, jax.Array]:
    """f32[]: how many cells were looked at, shares of calls that got nothing, Lemma 4.2's factor, also per role.

    The factor of a role is the mean over its calls; 0 where it made none.
    """
    factors = {}
    for index, name in enumerate(roles):
        calls = (mask & (role == index)).astype(jnp.float32)
        factors[f"inflation_{name}"] = jnp.sum(stats.inflation * calls) / jnp.maximum(jnp.sum(calls), 1.0)
    return {
        "cells": stats.cells.astype(jnp.float32),
        "singleton_share": stats.singleton_share,
        "zero_spread_share": stats.zero_spread_share,
        "mixed_share": stats.mixed_share,
        "inflation_mean": stats.inflation_mean,
        "inflation_max": stats.inflation_max,
        **factors,
    }
