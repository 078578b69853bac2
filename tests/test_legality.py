"""Turns that are illegal in exactly one position are rejected, become `wait` and change nobody else."""

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest

from ddpomdp.enums import EventKind, ResultCode
from ddpomdp.harness import STOP
from ddpomdp.pytree import replace

ENVS, TICKS, BAD = 64, 100, 8  # 51,200 turns


@pytest.fixture(scope="module")
def tries():
    """Per episode and tick: the sampled turns, the same with one agent waiting, and BAD broken ones of that agent."""
    env = play.make_shape("narrow")
    positions = 1 + env.spec.num_args
    low, high = -(2**31), 2**31 - 1

    def broken(key, legal, turns, who, position):
        """The turn with one position changed so that it is illegal: in range, just out of it, or far out."""
        near = jax.random.randint(key, (8,), -1, env.spec.vocabulary + 2)
        tokens = jnp.concatenate([near, jnp.array([low, high, -1])])
        order = jax.random.permutation(jax.random.fold_in(key, 1), 10)
        tokens = tokens[jnp.append(order, 10)]
        candidates = jax.vmap(lambda token: turns.at[who, position].set(token))(tokens)
        bad = ~jax.vmap(lambda t: env.harness.is_legal(legal, t)[who])(candidates)
        return candidates[jnp.argmax(bad)]

    def one(key, luck, state, ts, fresh, may_stop):
        turns = play.sample(env, jax.random.fold_in(luck, 2), ts, may_stop, may_stop)
        acts = ts.alive & ~ts.blocked & ~state.lives.returned
        who = jax.random.categorical(key, jnp.where(acts, 0.0, -jnp.inf))
        waits = turns.at[who].set(0)
        keys = jax.random.split(key, BAD)
        position = (jnp.arange(BAD) + jax.random.randint(key, (), 0, positions)) % positions
        bad = jax.vmap(lambda k, p: broken(k, ts.legal, turns, who, p))(keys, position)
        every = jnp.concatenate([turns[None], waits[None], bad])
        state_next, ts_next = jax.vmap(lambda t: env.step(luck, state, t))(every)
        at = lambda i, tree: jax.tree.map(lambda x: x[i], tree)  # noqa: E731

        # The next state must be that of the waiting agent, but for what the agent is told and the counter.
        told = lambda x: jnp.where(jnp.arange(x.shape[-1]) == who, 0, x)  # noqa: E731
        lives = state_next.lives
        lives = replace(lives, last_code=told(lives.last_code), last_value=told(lives.last_value))
        illegal = state_next.totals.illegal - state.totals.illegal
        plain = replace(state_next, lives=lives, totals=replace(state_next.totals, illegal=jnp.zeros(BAD + 2)))
        same = jnp.stack([jnp.all((x == x[1]).reshape(BAD + 2, -1), axis=-1) for x in jax.tree.leaves(plain)]).all(0)
        others = jnp.arange(env.spec.capacity) != who
        shown = (ts_next.uid, ts_next.alive, ts_next.terminated, ts_next.truncated, ts_next.reward, ts_next.turn)
        rows = (shown, ts_next.observation.self, ts_next.observation.claims, ts_next.observation.last_result)
        rows = (rows, ts_next.legal, ts_next.blocked, replace(ts_next.events, channels={}))
        fits = lambda x: others.reshape(1, -1, *(1,) * (x.ndim - 2))  # noqa: E731
        seen = [jnp.all(((x == x[1]) | ~fits(x)).reshape(BAD + 2, -1), axis=-1) for x in jax.tree.leaves(rows)]
        events = ts_next.events
        out = {
            "alive": jnp.any(acts),
            "tool": turns[who, 0],
            "turn": turns[who],
            "bad": bad[:, who],
            "changes": jnp.sum(bad[:, who] != turns[who], axis=-1),
            "position": position,
            "same": same[2:],
            "others": jnp.stack(seen).all(0)[2:],
            "illegal": illegal,
            "valid": events.valid[:, who],
            "kind": events.kind[:, who],
            "code": events.result_code[:, who],
            "tokens": events.tokens[:, who],
            "reward": ts_next.channels["tool"][:, who],
            "moved": ~jnp.stack([jnp.all(x[0] == x[1]) for x in jax.tree.leaves(plain)]).all(),
        }
        ended = ts_next.last[0]
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(ended, a, b), new, old)  # noqa: E731
        return pick(fresh, (at(0, state_next), at(0, ts_next))), out

    @jax.jit
    def play_all(key):
        lucks = jax.random.split(key, ENVS)
        fresh = jax.vmap(env.reset)(lucks, lucks)
        may_stop = jnp.arange(ENVS) % 8 == 0

        def tick(carry, t):
            keys = jax.vmap(lambda luck: jax.random.fold_in(luck, t))(lucks)
            # A fresh luck each tick: a restarted episode goes another way.
            return jax.vmap(one)(keys, keys, *carry, fresh, may_stop)

        return jax.lax.scan(tick, fresh, jnp.arange(TICKS))[1]

    return env, jax.tree.map(np.asarray, play_all(jax.random.key(0)))


def test_enough_turns_of_every_kind(tries):
    env, out = tries
    assert out["alive"].all() and out["same"].size >= 50_000
    assert (out["changes"] == 1).all()  # exactly one position
    each = np.stack([(out["tool"] == tool)[..., None] & (out["position"] == p) for tool in range(10) for p in range(5)])
    counts = each.sum((1, 2, 3)).reshape(10, 5)
    assert (np.delete(counts, STOP, 0) > 20).all() and (counts[STOP] > 0).all(), counts
    changed = np.take_along_axis(out["bad"], out["position"][..., None], axis=-1)[..., 0]
    assert (changed < 0).sum() > 1_000 and (changed > env.spec.vocabulary).sum() > 1_000
    # Also tokens that the grammar has, but not now.
    assert ((changed >= 0) & (changed < env.spec.vocabulary)).sum() > 10_000


def test_illegal_turns_are_rejected_and_counted(tries):
    _, out = tries
    assert not out["valid"][..., 2:].any()
    assert (out["illegal"][..., 2:] == 1).all()
    assert (out["kind"][..., 2:] == EventKind.WAIT).all() and (out["code"][..., 2:] == ResultCode.ILLEGAL).all()
    assert (out["tokens"][..., 2:, :] == out["bad"]).all()  # the event shows what was asked
    np.testing.assert_allclose(out["reward"][..., 2:], -0.01, rtol=1e-6)


def test_illegal_turns_change_nobody_else(tries):
    _, out = tries
    assert out["same"].all()
    assert out["others"].all()


def test_the_same_turns_repaired_are_accepted(tries):
    env, out = tries
    assert out["valid"][..., 0].all() and (out["illegal"][..., 0] == 0).all()
    assert (out["code"][..., 0] != ResultCode.ILLEGAL).all()
    assert (out["tokens"][..., 0, :] == out["turn"]).all()
    calls = out["tool"] != 0
    assert (out["kind"][..., 0] != EventKind.WAIT)[calls].all() and out["moved"][calls].all()
    assert len(np.unique(out["tool"])) == len(env.spec.tools)
