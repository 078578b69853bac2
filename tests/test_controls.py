"""Controls of learning: a reward that says nothing moves nothing; the same measurement sees a planted effect."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp.bench.stats import t_975
from ddpomdp.harness import STOP
from ddpomdp.pytree import replace
from ddpomdp_baselines import algorithms
from ddpomdp_baselines.learner import Sizes, Update, start
from ddpomdp_baselines.network import Network
from ddpomdp_baselines.train import step

SEEDS, UPDATES, TAIL = 20, 60, 10


@dataclass(frozen=True)
class Noise(Update):
    """Every episode is paid a number drawn independently of what happened in it."""

    def play(self, learner, key, env_params):
        data = super().play(learner, key, env_params)
        luck = jax.random.fold_in(jax.random.fold_in(key, 99), learner.update)
        paid = jax.random.normal(luck, data.group.shape)
        return replace(data, returns=jnp.where(data.decides, paid[:, None], 0.0))


@dataclass(frozen=True)
class Births(Update):
    """Every episode is paid one per agent born."""

    def play(self, learner, key, env_params):
        data = super().play(learner, key, env_params)
        return replace(data, returns=jnp.where(data.decides, data.facts["births"][:, None], 0.0))


def moved(kind):
    """{what: change from the first to the last updates, one number per seed}."""
    env = ddpomdp.make("Search-v0", preset="tiny")
    network, sizes = Network(env, width=8), Sizes(groups=4, group_size=8, num_ticks=32)
    update = kind(env, network, algorithms.find("grpo"), sizes, env.spec.roles)
    fresh = network.init(env)
    params = fresh | {"bias": fresh["bias"].at[0, STOP].add(-2.0)}
    every = jax.tree.map(lambda x: jnp.broadcast_to(x, (SEEDS, *x.shape)), params)
    learners = jax.vmap(lambda p: start(p, sizes))(every)
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    rows = []
    for _ in range(UPDATES):
        learners, metrics = step(update, learners, keys, every, env.params)
        rows.append(metrics)
    table = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    rates = {
        "spawns": table["spawns"] / table["decisions"],
        "stops": table["stops"] / table["decisions"],
        "ticks": table["ticks"],
    }
    assert (table["gradient_norm"][-1] > 0).all()
    return {name: values[-TAIL:].mean(axis=0) - values[:TAIL].mean(axis=0) for name, values in rates.items()}


def interval(values):
    half = t_975(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return values.mean() - half, values.mean() + half


@pytest.mark.slow
def test_a_reward_that_says_nothing_moves_nothing_and_a_planted_one_does():
    noise, births = moved(Noise), moved(Births)
    for name, values in noise.items():
        low, high = interval(values)
        print(f"{name}: noise {low:+.4f} to {high:+.4f}, planted {interval(births[name])}")
        assert low <= 0 <= high, name
    low, high = interval(births["spawns"])
    assert low > 0 and low > 3 * abs(interval(noise["spawns"])[1])
