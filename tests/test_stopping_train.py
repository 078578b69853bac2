"""A stop head in the policy network: its hazard is the chance to stop, and it is learned with any algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import cli
from ddpomdp.harness import STOP, WAIT
from ddpomdp_baselines import weights
from ddpomdp_baselines.network import MASKED, Network


@pytest.fixture(scope="module")
def env():
    return ddpomdp.make("Math-v0", preset="tiny", oracle_form="vote", capacity=1)


def test_the_hazard_is_the_chance_to_stop(env):
    net = Network(env, width=8, stop_head="hazard")._net(0)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(3, env.spec.vocabulary)), jnp.float32)
    tools = jnp.arange(env.spec.vocabulary)
    legal = jnp.stack([(tools <= STOP) | (tools == 8), (tools == WAIT) | (tools == 8), tools == STOP])
    said = net.with_stop(logits, legal, hidden)
    share = lambda x: np.asarray(jax.nn.softmax(jnp.where(legal, x, MASKED), axis=-1))  # noqa: E731
    new, old = share(said), share(logits)
    price = jnp.full((3, 1), net.price)
    hazard = net.stop(jax.nn.relu(net.stop_read(jnp.concatenate([hidden, price], axis=-1))))[:, 0]
    assert new[0, STOP] == pytest.approx(float(jax.nn.sigmoid(hazard[0])), abs=1e-6)
    others = np.asarray(legal[0]) & (np.arange(len(tools)) != STOP)
    assert np.allclose(new[0, others] / new[0, others].sum(), old[0, others] / old[0, others].sum(), atol=1e-6)
    assert np.allclose(new[1:], old[1:], atol=1e-6)  # stop illegal, or nothing else legal
    assert 0.05 < new[0, STOP] < 0.2


@pytest.mark.slow
def test_it_is_trained_with_the_rest_and_comes_back_from_its_file(env, tmp_path):
    out = tmp_path / "run"
    words = ["train", "grpo", "Math-v0", "updates=2", "groups=2", "group_size=4", "num_ticks=16", "eval_episodes=0"]
    words += ["init=random", "width=8", "stop_head=hazard", "env.preset=tiny", "env.oracle_form=vote", "env.capacity=1"]
    assert cli.main([*words, "--out", str(out)]) == 0
    network, params, _ = weights.load(out / "seed-0.npz", env)
    assert network.stop_head == "hazard" and network.width == 8
    fresh = Network(env, width=8, stop_head="hazard").init(env)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), params["stop"], fresh["stop"])
    assert moved["bias"] > 0 and all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))


def test_an_unknown_head_is_one_line(capsys, tmp_path):
    words = ["train", "grpo", "Math-v0", "stop_head=oracle", "init=random", "--out", str(tmp_path / "x")]
    assert cli.main(words) == 2
    assert "stop_head" in capsys.readouterr().err
