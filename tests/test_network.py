"""The policy network: probabilities are those of whole turns, empty rows reach nothing, noise belongs to lives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import make_shape

from ddpomdp.harness import BOUNDS, DELEGATE, DESPAWN, MESSAGE
from ddpomdp.pytree import replace
from ddpomdp_baselines.network import Network, choices, drawn, view

TICKS = 24


@pytest.fixture(scope="module")
def env():
    return make_shape("hierarchical")


@pytest.fixture(scope="module")
def network(env):
    return Network(env, width=8)


@pytest.fixture(scope="module")
def params(env, network):
    """Weights far from the small fresh ones, so that every part of the network speaks up."""
    fresh, key = network.init(env), jax.random.key(7)
    leaves, tree = jax.tree.flatten(fresh)
    noise = [jax.random.normal(jax.random.fold_in(key, i), x.shape) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(tree, [x + 0.4 * n for x, n in zip(leaves, noise, strict=True)])


@pytest.fixture(scope="module")
def play(env):
    """Time steps of episodes under random legal turns without `stop`, [T, B, ...]."""

    @jax.jit
    def run(keys):
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        state, ts = jax.vmap(env.reset)(keys, luck)

        def tick(carry, t):
            state, ts = carry
            stay = replace(ts, legal=replace(ts.legal, tools=ts.legal.tools & ~(1 << 7)))
            turns = jax.vmap(env.sample_turns)(jax.vmap(lambda key: jax.random.fold_in(key, t))(keys), stay)
            return jax.vmap(env.step)(luck, state, turns), ts

        return jax.lax.scan(tick, (state, ts), jnp.arange(TICKS))[1]

    return run(jax.random.split(jax.random.key(0), 64))


def moment(play, tick, episode):
    return jax.tree.map(lambda x: x[tick, episode], play)


@pytest.fixture(scope="module")
def busy(play):
    """A moment with two parents, a searcher, empty slots, and a root that may delegate, despawn one of two, message."""
    tools, alive = np.asarray(play.legal.tools), np.asarray(play.alive)
    able = ((tools[..., 0] >> DELEGATE) & (tools[..., 0] >> DESPAWN) & (tools[..., 0] >> MESSAGE) & 1) == 1
    able &= np.asarray(play.legal.bounds)[..., 0, BOUNDS.index("child_rows")] >= 2
    able &= (np.asarray(play.observation.roster_uid) >= 0).any(axis=-1).sum(axis=-1) >= 2
    free = alive & (tools != 1)  # more than `wait` is legal
    able &= ((np.asarray(play.observation.self)[..., 1] > 0) & free).any(axis=-1) & ~alive.all(axis=-1)
    found = np.argwhere(able)
    assert len(found)
    return moment(play, *found[-1])


@pytest.fixture(scope="module")
def act(network):
    return jax.jit(lambda params, key, ts: network.act(params, key, (), ts))


@pytest.fixture(scope="module")
def score(network):
    return jax.jit(lambda params, seen, turns: network.score(params, seen, turns))


def test_probabilities_of_all_legal_turns_sum_to_one(env, busy, params, score):
    menu = jnp.asarray(env.harness.menu)
    seen = view(busy.observation, busy.legal)
    logp = jax.jit(
        jax.vmap(lambda turn: jnp.sum(score(params, seen, jnp.broadcast_to(turn, busy.events.tokens.shape)).logp, -1))
    )(menu)
    legal = jax.vmap(lambda turn: env.harness.is_legal(busy.legal, jnp.broadcast_to(turn, busy.events.tokens.shape)))(
        menu
    )
    total = np.where(legal, np.exp(logp), 0.0).sum(axis=0)
    np.testing.assert_allclose(total, 1.0, atol=1e-5)
    assert np.asarray(legal).sum(axis=0).max() > 30


def test_a_pointer_tells_children_apart(env, busy, params, score):
    """Two rows of the roster that differ give different logits; swapping them swaps the probabilities."""
    seen = view(busy.observation, busy.legal)

    def turns(row):
        call = env.harness.turn("despawn", who=f"row_{row}")
        return jnp.zeros_like(busy.events.tokens).at[0].set(jnp.asarray(call))

    one, two = (score(params, seen, turns(row)).logp[0].sum() for row in (0, 1))
    assert abs(one - two) > 1e-3
    place = int(jnp.argmax(seen.at == 0))
    swap = jnp.asarray([1, 0, *range(2, seen.roster.shape[1])])
    swapped = replace(
        seen,
        roster=seen.roster.at[place].set(seen.roster[place, swap]),
        roster_uid=seen.roster_uid.at[place].set(seen.roster_uid[place, swap]),
    )
    np.testing.assert_allclose(score(params, swapped, turns(1)).logp[0].sum(), one, rtol=1e-5)


def test_what_is_said_is_legal_and_has_the_probability_it_was_drawn_with(env, play, params, act, score):
    said = 0
    for tick, episode in ((t, b) for t in (0, 5, 11, 17, 23) for b in (0, 3, 7)):
        ts = moment(play, tick, episode)
        turns, _, aux = act(params, jax.random.key(tick), ts)
        alive = np.asarray(ts.alive)
        assert np.asarray(env.harness.is_legal(ts.legal, turns))[alive].all()
        spoken = score(params, view(ts.observation, ts.legal), turns)
        np.testing.assert_allclose(spoken.logp, aux["logp"], atol=1e-5)
        np.testing.assert_array_equal(spoken.choice, aux["choice"])
        np.testing.assert_array_equal(spoken.choice, choices(env.harness, ts.legal, turns))
        several = np.asarray(env.harness.legal_count(ts.legal)) > 1
        assert (several >= np.asarray(spoken.choice[:, 0])).all()
        assert (np.asarray(spoken.logp)[~np.asarray(spoken.choice)] == 0).all()
        assert (np.asarray(spoken.entropy)[np.asarray(spoken.choice)] > 0).all()
        said += int(spoken.choice.sum())
    assert said > 30


def test_frequencies_follow_probabilities(busy, params, act):
    """The root's tool over 4,000 policy keys, against its probability, by chi-square."""
    turns, _, aux = jax.jit(jax.vmap(lambda key: act(params, key, busy)))(jax.random.split(jax.random.key(1), 4_000))
    tools, logp = np.asarray(turns[:, 0, 0]), np.asarray(aux["logp"][:, 0, 0])
    seen = {tool: (np.sum(tools == tool), np.exp(logp[tools == tool][0])) for tool in np.unique(tools)}
    assert len(seen) >= 4
    chi = sum((count - 4_000 * p) ** 2 / (4_000 * p) for count, p in seen.values())
    assert chi < 30  # up to 9 degrees of freedom: 0.05% above


def test_empty_rows_reach_neither_values_nor_gradients(env, network, busy, params, score):
    seen = view(busy.observation, busy.legal)
    turns = jnp.zeros_like(busy.events.tokens).at[0].set(jnp.asarray(env.harness.turn("despawn", who="row_1")))
    empty = np.asarray(busy.uid) < 0
    assert empty.any() and (np.asarray(seen.roster_uid) < 0).any() and (np.asarray(seen.at) >= empty.size).any()

    def loss(params, seen):
        spoken = network.score(params, seen, turns)
        return jnp.sum(jnp.where(jnp.asarray(empty)[:, None], 0.0, spoken.logp + 0.1 * spoken.entropy))

    grad = jax.jit(jax.value_and_grad(loss))
    value, gradient = grad(params, seen)
    for poison in (1e9, -1e9):
        fill = lambda x, where: jnp.where(where.reshape(-1, *(1,) * (x.ndim - 1)), poison, x)  # noqa: E731,B023
        poisoned = replace(
            seen,
            self=fill(seen.self, jnp.asarray(empty)),
            claims=fill(seen.claims, jnp.asarray(empty)),
            roster=jnp.where((seen.roster_uid < 0)[..., None], jnp.nan, seen.roster),
            board=fill(seen.board, seen.at >= empty.size),
        )
        other, other_gradient = grad(params, poisoned)
        assert value == other
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
            np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(x).all() and np.abs(x).max() > 0 for x in jax.tree.leaves(gradient))


def test_noise_belongs_to_lives_not_to_slots(busy, params, act):
    """Slots renamed: turns renamed."""
    order = jnp.asarray(np.random.default_rng(0).permutation(busy.uid.shape[0]))
    where = jnp.argsort(order)
    observation = busy.observation
    parent = observation.parent_slot
    renamed = replace(
        busy,
        observation=replace(
            observation,
            self=observation.self[order],
            claims=observation.claims[order],
            last_result=observation.last_result[order],
            parent_slot=jnp.where(parent >= 0, where[jnp.maximum(parent, 0)], -1),
        ),
        legal=jax.tree.map(lambda x: x[order], busy.legal),
        lineage=busy.lineage[order],
        turn=busy.turn[order],
        uid=busy.uid[order],
        alive=busy.alive[order],
    )
    turns, _, _ = act(params, jax.random.key(5), busy)
    other, _, _ = act(params, jax.random.key(5), renamed)
    alive = np.asarray(busy.alive)[order]
    np.testing.assert_array_equal(np.asarray(turns)[order][alive], np.asarray(other)[alive])


def test_weights_per_role(env, busy, params):
    """With equal weights for all roles nothing changes; with others, only the other roles' turns."""
    network = Network(env, width=8, per_role=True)
    same = jax.tree.map(lambda x: jnp.stack([x] * len(env.spec.roles)), params)
    other = jax.tree.map(lambda x: x.at[1].multiply(-1.0), same)
    assert jax.tree.map(jnp.shape, network.init(env)) == jax.tree.map(jnp.shape, same)
    turns = jnp.zeros_like(busy.events.tokens)
    score = lambda params, network: jax.jit(  # noqa: E731
        lambda params: network.score(params, view(busy.observation, busy.legal), turns)
    )(params)
    spoken = score(params, Network(env, width=8)), score(same, network), score(other, network)
    assert all(each.choice.dtype == bool for each in spoken)
    plain, equal, changed = (each.logp for each in spoken)
    np.testing.assert_allclose(plain, equal, atol=1e-6)
    searcher = np.asarray((busy.observation.self[:, 1] > 0) & busy.alive & (busy.legal.tools != 1))
    assert searcher.any() and np.abs(np.asarray(changed - plain))[searcher].max() > 1e-3
    others = ~np.asarray(busy.observation.self[:, 1] > 0)
    np.testing.assert_allclose(np.asarray(changed)[others], np.asarray(plain)[others], atol=1e-6)


def test_drawing_hits_legal_tokens_at_both_ends_of_luck():
    logits = jnp.asarray([[-1e9, 0.0, 1.0, -1e9], [-1e9, -1e9, -1e9, 3.0], [50.0, -50.0, -1e9, -1e9]])
    logp = jax.nn.log_softmax(logits, axis=-1)
    low, high = jnp.zeros(3), jnp.full(3, 1 - 2.0**-24)
    np.testing.assert_array_equal(drawn(logp, low), [1, 3, 0])
    assert drawn(logp, high).tolist()[:2] == [2, 3] and int(drawn(logp, high)[2]) in (0, 1)
