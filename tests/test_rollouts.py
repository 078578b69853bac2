"""Rollouts, branches, batches with automatic reset, and policies composed by role."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import wrappers

TICKS = 32


@pytest.fixture(scope="module")
def env():
    return ddpomdp.make("Search-v0", preset="tiny", unanswerable=0.2)


@pytest.fixture(scope="module")
def swarm(env):
    policy = ddpomdp.policy("swarm", env, n=3)
    return policy, policy.init(env)


@pytest.fixture(scope="module")
def group(env, swarm):
    """Four rollouts of one task draw."""
    policy, params = swarm
    key = jax.random.key(3)
    lucks = jax.random.split(jax.random.key(4), 4)
    play = jax.jit(jax.vmap(lambda luck: ddpomdp.rollout(env, policy, params, key, TICKS, luck=luck)))
    return key, lucks, jax.tree.map(np.asarray, play(lucks))


def test_a_group_shares_the_task_and_not_the_luck(group):
    _, _, episodes = group
    packed = episodes.state.task.packed & 0xFFF  # truth, wrong values, hard, answerable, poisoned
    assert (packed == packed[:1]).all()
    assert len({tuple(x) for x in episodes.state.task.tie}) == 4
    assert len(set(episodes.next_ts.info["wall_s"][:, -1])) == 4


def test_the_team_is_paid_once_to_everyone_alive(group):
    _, _, episodes = group
    after = episodes.next_ts
    ends = after.last & ~np.concatenate([np.zeros_like(after.last[:, :1]), after.last[:, :-1]], axis=1)
    assert (ends.sum(axis=1) == 1).all()
    team, lives = after.channels["team"], after.events.uid >= 0
    assert (team[~ends] == 0).all()
    for episode in range(4):
        t = int(np.argmax(ends[episode]))
        quality = after.info["quality"][episode, t]
        expected = quality - 1e-6 * after.info["tokens"][episode, t] - 1e-4 * after.info["wall_s"][episode, t]
        np.testing.assert_allclose(team[episode, t][lives[episode, t]], expected, rtol=1e-5)
        paid = after.channels["individual"][episode].sum() + episodes.state.late[episode].sum()
        np.testing.assert_allclose(paid, quality - ddpomdp_quality_of_nothing(episodes, episode), atol=1e-5)


def ddpomdp_quality_of_nothing(episodes, episode):
    return 1.0 if episodes.next_ts.info["answerable"][episode, -1] == 0 else 0.0


def test_a_branch_with_the_original_turn_and_luck_repeats_the_original(env, swarm, group):
    policy, params = swarm
    key, lucks, episodes = group
    turn = env.harness.turn
    alternatives = jnp.asarray(
        [
            turn("spawn", role="searcher", count=3, chunk="even", brief="standard"),
            turn("spawn", role="searcher", count=1, chunk="even", brief="short"),
            turn("stop"),
        ]
    )
    state, _ = env.reset(key, lucks[0])
    # As they come out of a file: numpy, which cannot be indexed by what is traced.
    state, memory, params = jax.tree.map(np.asarray, (state, policy.carry(env), params))
    again = lambda luck: ddpomdp.branch(env, state, 0, np.asarray(alternatives), policy, params, luck, memory=memory)  # noqa: E731
    returns = jax.jit(again)(lucks)
    assert returns.shape == (3, 4)
    assert float(returns[0, 0]) == episodes.next_ts.channels["team"][0].max(axis=-1).sum()
    assert (np.asarray(returns[2]) < 0.2).all()  # stopped at once: nothing but the price, or nothing answerable
    assert len(set(np.asarray(returns).ravel().tolist())) > 6


def test_states_and_parameters_may_be_numpy(env, swarm, group):
    policy, params = swarm
    key, lucks, episodes = group
    state, params = jax.tree.map(np.asarray, (env.reset(key, lucks[0])[0], params))
    turns = np.zeros((env.spec.capacity, 1 + env.spec.num_args), np.int32)
    shown = jax.eval_shape(lambda luck: env.step(luck, state, turns), lucks[0])[1]  # traced, not compiled
    assert shown.uid.shape == (env.spec.capacity,)
    assert jax.eval_shape(lambda: env.observe(state)).self.shape == shown.observation.self.shape
    long = jax.eval_shape(lambda key: ddpomdp.rollout(env, policy, params, key, TICKS), key)
    assert long.turns.shape == episodes.turns.shape[1:]


def test_view_of_a_state_is_what_step_showed(env, group):
    _, _, episodes = group
    shown, seen = episodes.ts, jax.vmap(env.view)(jax.tree.map(jnp.asarray, episodes.state))
    last = jax.tree.map(lambda x: x[:, -1], episodes.next_ts)
    assert (np.asarray(seen.legal.tools) == last.legal.tools).all() and seen.last.all()
    np.testing.assert_array_equal(seen.observation.self, last.observation.self)
    np.testing.assert_array_equal(seen.info["wall_s"], last.info["wall_s"])
    assert shown.alive[:, 0].sum() == 4  # the root alone


@pytest.mark.parametrize("mode", ["same_step", "next_step", "off"])
def test_automatic_reset(env, swarm, mode):
    policy, params = swarm
    batch = wrappers.auto_reset(env, 3, mode)

    @jax.jit
    def play(key):
        running, ts = batch.reset(key)
        memory = jnp.zeros((3, env.spec.capacity), jnp.int32)

        def tick(carry, _):
            running, ts, memory = carry
            memory = jnp.where(((ts.turn[:, 0] == 0) & ~ts.last)[:, None], 0, memory)
            turns, memory, _ = jax.vmap(policy.act, in_axes=(None, None, 0, 0))(params, key, memory, ts)
            running, ts, final = batch.step(running, turns)
            return (running, ts, memory), (ts.last, final.last, ts.uid, final.info["quality"], running.state.tick)

        (running, _, _), shown = jax.lax.scan(tick, (running, ts, memory), None, length=80)
        return wrappers.statistics(running), shown

    stats, (last, final_last, uid, quality, tick) = jax.tree.map(np.asarray, play(jax.random.key(0)))
    if mode == "off":
        assert (stats["episodes"] == 1).all() and last[-1].all() and (uid[-1] == -1).all()
        return
    assert (stats["episodes"] >= 2).all() and (stats["ticks"] > 5).all()
    ends = last if mode == "next_step" else final_last  # the step after an end shows it again before it resets
    assert (ends.sum(axis=0) == stats["episodes"]).all()
    assert (quality[ends] > 0).any()  # the last observation is delivered
    if mode == "next_step":
        assert (tick[1:][ends[:-1]] == 0).all() and (tick[ends] > 0).all()
    else:
        assert (tick[ends] == 0).all() and not last.any()


def test_batches_are_refused_by_name(env):
    with pytest.raises(ValueError, match="num_envs: got 0"):
        wrappers.auto_reset(env, 0)
    with pytest.raises(ValueError, match="autoreset: got 'never', allowed: same_step, next_step, off"):
        wrappers.auto_reset(env, 2, "never")


def test_by_role_plays_each_part_in_its_role(env, swarm):
    script, _ = swarm
    random = ddpomdp.policy("random", env)
    team = ddpomdp.by_role({"lead": script, "searcher": random, "checker": script})
    episode = jax.jit(lambda key: ddpomdp.rollout(env, team, team.init(env), key, TICKS))(jax.random.key(5))
    events = jax.tree.map(np.asarray, episode.next_ts.events)
    spawns = (events.kind == ddpomdp.EventKind.SPAWN) & (events.uid == 0)
    assert spawns.sum() == 1  # the script's lead
    searchers = events.is_decision & (events.role == 1)
    assert len(set(events.kind[searchers].tolist())) >= 3  # random workers do not only search
