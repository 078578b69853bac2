"""Experience, gradients and updates: what a learner is given, and what it may and may not react to."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import make_shape

import ddpomdp
from ddpomdp.harness import DESPAWN, STOP
from ddpomdp.pytree import replace
from ddpomdp_baselines import algorithms
from ddpomdp_baselines.experience import collect, entries, group_keys
from ddpomdp_baselines.learner import Sizes, Update, norm, start
from ddpomdp_baselines.network import Network, view

TICKS, GROUPS, SIZE = 64, 3, 4
SIZES = Sizes(groups=GROUPS, group_size=SIZE, num_ticks=TICKS, chunk=64)


@pytest.fixture(scope="module")
def env():
    return make_shape("hierarchical")


@pytest.fixture(scope="module")
def network(env):
    return Network(env, width=8)


@pytest.fixture(scope="module")
def params(env, network):
    """Fresh weights that seldom say `stop` and often `despawn`, so that many lives are born and leave."""
    fresh = network.init(env)
    return fresh | {"bias": fresh["bias"].at[0, STOP].add(-3.0).at[0, DESPAWN].add(1.0)}


def update_of(env, network, name="dr_mas", **changes):
    return Update(env, network, algorithms.find(name), dataclasses.replace(SIZES, **changes), env.spec.roles)


@pytest.fixture(scope="module")
def weights(env):
    """Numbers of the environment under a reward that every life is paid by, the leavers late."""
    weights = env.params.weights | {"individual": jnp.float32(0.5), "tool": jnp.float32(1.0)}
    return replace(env.params, weights=weights)


@pytest.fixture(scope="module")
def data(env, network, params, weights):
    keys, luck, group = group_keys(jax.random.key(2), GROUPS, SIZE)
    run = jax.jit(lambda params: collect(env, network, params, keys, luck, group, TICKS, weights))
    return run(params)


def test_groups_share_the_task_and_not_the_luck():
    keys, luck, group = group_keys(jax.random.key(0), 3, 4)
    words = lambda x: [tuple(w) for w in np.asarray(jax.random.key_data(x))]  # noqa: E731
    assert group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(set(words(keys))) == 3 and len(set(words(luck))) == 12
    assert all(len(set(words(keys)[i : i + 4])) == 1 for i in (0, 4, 8))


def test_experience_is_what_rollouts_are(env, network, params, weights, data):
    """Turns, probabilities, decisions; a life's return is all it was paid, late reward included."""
    keys, luck, _ = group_keys(jax.random.key(2), GROUPS, SIZE)
    play = jax.jit(
        jax.vmap(lambda key, luck: ddpomdp.rollout(env, network, params, key, TICKS, luck=luck, env_params=weights))
    )
    played = play(keys, luck)
    late_lives = differing = 0
    for b in range(GROUPS * SIZE):
        one = jax.tree.map(lambda x, b=b: np.asarray(x[b]), played)
        event = one.next_ts.events
        decides = event.is_decision & event.valid
        np.testing.assert_array_equal(np.asarray(data.decides)[:, b], decides)
        np.testing.assert_array_equal(np.asarray(data.turns)[:, b][decides], one.turns[decides])
        np.testing.assert_allclose(np.asarray(data.logp)[:, b][decides], one.logp[decides], atol=1e-5)
        paid = one.late_reward.copy()
        for t in range(TICKS):
            for n in range(event.uid.shape[1]):
                if event.uid[t, n] >= 0:
                    paid[event.uid[t, n]] += one.next_ts.reward[t, n]
        np.testing.assert_allclose(np.asarray(data.returns)[:, b][decides], paid[event.uid[decides]], atol=1e-5)
        np.testing.assert_allclose(data.facts["reward"][b], paid[0], atol=1e-5)
        late_lives += int((one.late_reward != 0).sum())
        differing += len(set(paid[event.uid[decides]].round(5)))
    assert late_lives > 3 and differing > 2 * GROUPS * SIZE


def test_chunks_of_any_size_give_the_gradient_of_the_whole(env, network, params, data):
    """Against automatic differentiation of the loss written out over all slots of all ticks."""
    learns = jnp.ones_like(data.decides)
    small = update_of(env, network)
    advantage, weight, _ = small.credit(data, learns)
    behind = jax.tree.map(lambda x: x + 0.01, params)  # a policy that differs from the one that acted
    gradient, sums = jax.jit(lambda p: small.gradient(p, data, learns, advantage, weight, None))(behind)

    def whole(params):
        def of_tick(observation, legal, turns):
            return network.score(params, view(observation, legal), turns).logp

        logp = jax.vmap(jax.vmap(of_tick))(data.seen, data.legal, data.turns)
        ratio = jnp.exp(logp - data.logp)
        a = advantage.reshape(data.decides.shape)[..., None]
        low = -jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
        loss = jnp.where(a < 0, jnp.minimum(low, -3.0 * a), low)
        counts = data.decides[..., None] & (logp != 0)
        return jnp.sum(jnp.where(counts, loss * weight.reshape(data.decides.shape)[..., None], 0.0))

    value, expected = jax.jit(jax.value_and_grad(whole))(behind)
    np.testing.assert_allclose(sums["loss"], value, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-3)
    assert norm(gradient) > 1e-4


@pytest.mark.parametrize("name", algorithms.names())
def test_a_row_of_the_table_is_its_formula(env, network, data, name):
    """Advantages by hand, in float64, on a rollout with births, deaths, and lives paid differently."""
    row = algorithms.find(name)
    advantage, weight, facts = update_of(env, network, name).credit(data, jnp.ones_like(data.decides))
    decides, role = np.asarray(data.decides), np.asarray(data.role)
    value = np.asarray(data.returns, np.float64)
    got = np.asarray(advantage).reshape(decides.shape)
    group = np.broadcast_to(np.asarray(data.group)[:, None], decides.shape)
    episode = np.broadcast_to(np.arange(GROUPS * SIZE)[:, None], decides.shape)

    def statistics(scope, t, b, n):
        """(score of the call, the samples of its cell, whether they are of one rollout)."""
        cell = decides & ((group == group[t, b, n]) | (not scope.startswith("group")))
        if scope.endswith("agent"):
            cell &= role == role[t, b, n]
        if row.sample != "trajectory":
            times = np.asarray(data.tokens)[cell] if row.sample == "token" else 1
            return value[t, b, n], np.repeat(value[cell], times), len(np.unique(episode[cell])) == 1
        means = {e: value[cell & (episode == e)].mean() for e in np.unique(episode[cell])}
        return means[b], np.asarray(list(means.values())), len(means) == 1

    checked = 0
    for t, b, n in np.argwhere(decides)[::7]:
        score, samples, lone = statistics(row.center_scope, t, b, n)
        if row.center == "leave_one_out":
            expected = score - (samples.sum() - score) / (len(samples) - 1)
        else:
            expected = score - samples.mean()
        if row.scale == "std":
            _, others, alone = statistics(row.scale_scope, t, b, n)
            expected, lone = expected / (others.std(ddof=row.ddof) + 1e-6), lone or alone
        expected = 0.0 if lone else expected
        np.testing.assert_allclose(got[t, b, n], expected, atol=2e-4, rtol=1e-4)
        checked += 1
    assert checked > 30 and (got[~decides] == 0).all()
    assert facts["inflation_max"] >= facts["inflation_mean"] > 0
    tokens = entries(data.tokens) * jnp.asarray(entries(data.decides))
    if row.aggregation != "sum_constant":
        np.testing.assert_allclose(jnp.sum(weight * tokens), 1.0, rtol=1e-5)


def test_inflation_is_the_closed_form_and_at_most_group_size_less_one(env, network, data):
    """Lemma 4.2 with the group's statistics over trajectories, ddof 0, eps 0, on the team's reward."""
    team = jnp.broadcast_to(data.facts["reward"][:, None], data.decides.shape)
    same = replace(data, returns=jnp.where(data.decides, team, 0.0))
    row = algorithms.find("grpo", {"ddof": 0, "eps": 0.0})
    advantage, _, facts = Update(env, network, row, SIZES, env.spec.roles).credit(same, jnp.ones_like(data.decides))
    reward, decides, role = (np.asarray(x) for x in (data.facts["reward"], data.decides, data.role))
    largest = 0.0
    for g in range(GROUPS):
        members = np.flatnonzero(np.asarray(data.group) == g)
        mu, sigma = reward[members].mean(), reward[members].std()
        for k in range(len(env.spec.roles)):
            calls = [reward[b] for b in members for _ in range((decides[:, b] & (role[:, b] == k)).sum())]
            if calls:
                largest = max(largest, (np.var(calls) + (np.mean(calls) - mu) ** 2) / sigma**2)
    np.testing.assert_allclose(facts["inflation_max"], largest, rtol=1e-3)
    assert 0 < largest <= SIZE - 1
    assert np.abs(advantage).max() > 0


@pytest.fixture(scope="module")
def step(env, network):
    update = update_of(env, network)
    return jax.jit(update)


def with_weights(env, **weights):
    return replace(env.params, weights={name: jnp.float32(weights.get(name, 0.0)) for name in env.params.weights})


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def test_a_constant_reward_changes_no_bit(env, params, step):
    """No reward at all: the same for everyone, whatever they do."""
    learner, metrics = step(start(params, SIZES), jax.random.key(0), params, with_weights(env))
    assert same(learner.params, params) and int(learner.update) == 1
    assert metrics["gradient_norm"] == 0 and metrics["decisions"] > 0 and metrics["zero_spread_share"] == 1


def test_rewards_of_any_size_stay_finite_and_point_the_same_way(env, params, step):
    moved = {}
    for scale in (1e-6, 1.0, 1e6):
        learner, metrics = step(start(params, SIZES), jax.random.key(0), params, with_weights(env, team=scale))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner)) and metrics["skipped"] == 0
        moved[scale] = np.concatenate(
            [np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (learner.params, params)), strict=True)]
        )
    assert np.abs(moved[1.0]).max() > 0
    assert np.dot(np.sign(moved[1.0]), np.sign(moved[1e6])) > 0.9 * np.count_nonzero(moved[1.0])


def test_what_is_not_finite_changes_nothing_and_is_counted(env, params, step):
    learner = start(params, SIZES)
    for value in (np.nan, np.inf, -np.inf):
        learner, metrics = step(learner, jax.random.key(0), params, with_weights(env, team=value))
        assert same(learner.params, params) and metrics["skipped"] == 1
    assert int(learner.skipped) == 3
    learner, metrics = step(learner, jax.random.key(0), params, with_weights(env, team=1.0))
    assert int(learner.skipped) == 0 and not same(learner.params, params)
    assert int(learner.update) == 4


def test_roles_that_do_not_learn_give_nothing(env, network, data):
    """Decisions of other roles enter no statistic and no gradient."""
    lead = data.role == 0
    advantage, weight, _ = update_of(env, network).credit(data, lead)
    others = entries(data.decides & ~lead)
    assert np.asarray(others).any()
    assert (np.asarray(advantage)[np.asarray(others)] == 0).all()
    assert (np.asarray(weight)[np.asarray(others)] == 0).all()
