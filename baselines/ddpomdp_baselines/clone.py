"""The base policy: a network cloned from noisy scripted teams, so that learning starts competent and biased.

The teacher draws one script per episode from a list, says a uniformly legal turn instead of its own now and then, and
lets the others follow the script's worker rule with the same noise. The clone maximises the log-likelihood of what was
said, noise included, so that it keeps some curiosity.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ddpomdp.env import Env
from ddpomdp.luck import Purpose, draw, unit
from ddpomdp.policies import Script
from ddpomdp.timestep import TimeStep
from ddpomdp_baselines.experience import collect, entries, group_keys, sum_over_decisions
from ddpomdp_baselines.network import Network, View, choices


@dataclass(frozen=True)
class NoisyScripts:
    """One of several scripts per episode, with noise per turn.

    Attributes:
      env: the environment.
      scripts: of one kind; their lines and habits are parameters.
      shares: how often each script is drawn, relative to the others.
      noise: chance that a turn is replaced by a uniformly legal one.
    """

    env: Env
    scripts: tuple[Script, ...] = field(compare=False)
    shares: tuple[float, ...] = field(compare=False)
    noise: float = 0.05

    def init(self, env: Env) -> tuple[Any, jax.Array]:
        """(the scripts' parameters, leading axis script; upper ends of the shares f32[S]).

        Lines of shorter scripts are filled up with their last one.
        """
        each = [jax.tree.leaves(script.init(env)) for script in self.scripts]
        tree = jax.tree.structure(self.scripts[0].init(env))
        stacked = jax.tree.unflatten(tree, [_stacked(leaves) for leaves in zip(*each, strict=True)])
        shares = jnp.cumsum(jnp.asarray(self.shares, jnp.float32))
        return stacked, shares / shares[-1]

    def carry(self, env: Env) -> Any:
        """As for a script."""
        return self.scripts[0].carry(env)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The turn of the episode's script, or noise; `logp` is 0: nobody is taught by it."""
        scripts, shares = params
        which = jnp.sum(jax.random.uniform(jax.random.fold_in(key, 1)) >= shares[:-1])
        turns, carry, _ = self.scripts[0].act(jax.tree.map(lambda x: x[which], scripts), key, carry, ts)
        coin = unit(draw(jax.random.fold_in(key, 2), ts.lineage, ts.turn, Purpose.POLICY)[:, 0])
        noise = self.env.sample_turns(jax.random.fold_in(key, 3), ts)
        turns = jnp.where((coin < self.noise)[:, None], noise, turns)
        logp = jnp.zeros(turns.shape, jnp.float32)
        return turns, carry, {"logp": logp, "choice": choices(self.env.harness, ts.legal, turns)}


def _stacked(leaves: Sequence[jax.Array]) -> jax.Array:
    """One leaf of every script on a leading axis; those with a line axis are filled up along it."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    if arrays[0].ndim:
        length = max(len(a) for a in arrays)
        arrays = [np.concatenate([a, np.repeat(a[-1:], length - len(a), axis=0)]) for a in arrays]
    return jnp.asarray(np.stack(arrays))


def clone(
    env: Env,
    teacher: NoisyScripts,
    network: Network,
    *,
    seed: int,
    updates: int,
    episodes: int = 64,
    learning_rate: float = 3e-3,
    chunk: int = 2048,
    advance: Callable[[str], None] = lambda words: None,
) -> Any:
    """Parameters of `network` that imitate `teacher`, after `updates` steps of Adam on fresh episodes each.

    loss = - 1/2 mean over the lead's tokens of log p - 1/2 mean over the others' tokens of log p

    Args:
      env: where the teacher plays.
      teacher: whom to imitate.
      network: what is to imitate.
      seed: of weights and episodes.
      updates: steps; the learning rate falls to 0 along a cosine.
      episodes: per step.
      learning_rate: at the start.
      chunk: decisions per piece of a gradient.
      advance: called after each step with a few words.
    """
    rule = optax.adam(optax.cosine_decay_schedule(learning_rate, updates))
    scripts = teacher.init(env)

    @jax.jit
    def step(params: Any, state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
        keys, luck, group = group_keys(key, episodes, 1)
        data = collect(env, teacher, scripts, keys, luck, group, env.spec.max_ticks, env.params)
        leads = entries(data.decides & (data.role == 0))
        tokens = entries(data.tokens).astype(jnp.float32)
        share = jnp.where(leads, 0.5 / jnp.sum(tokens * leads), 0.5 / jnp.sum(tokens * ~leads))

        def loss(params: Any, seen: View, entry: jax.Array, real: jax.Array) -> jax.Array:
            spoken = network.score(params, seen, entries(data.turns)[entry])
            counts = spoken.choice & real[:, None]
            return -jnp.sum(jnp.where(counts, share[entry][:, None] * spoken.logp, 0.0))

        part = jax.value_and_grad(loss)
        value, gradient = sum_over_decisions(
            lambda seen, entry, real: part(params, seen, entry, real), data, jnp.ones_like(data.decides), chunk
        )
        change, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, change), state, value

    params = dataclasses.replace(network, seed=seed).init(env)
    state, key = rule.init(params), jax.random.key(seed)
    for update in range(updates):
        params, state, value = step(params, state, jax.random.fold_in(key, update))
        advance(f"loss {float(value):.3f}")
    return params
