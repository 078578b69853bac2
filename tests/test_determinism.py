"""Same seed, same bytes: in other processes, at every batch size, in scan and loop, compiled and not."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import play
import pytest
from play import differing

from ddpomdp import make

TICKS, SIZES = 16, (1, 2, 7, 64, 1_024)
OPTIONS = {"preset": "tiny", "poison": 0.2, "unanswerable": 0.2}


def episode(env, seed, num_ticks=TICKS):
    """Everything an episode of random turns shows, and its last state, by seed."""
    key = jax.random.fold_in(jax.random.key(11), seed)
    luck = jax.random.fold_in(key, 1)
    state, ts = env.reset(key, luck)

    def tick(carry, _):
        state, ts = carry
        turns = play.sample(env, jax.random.fold_in(luck, 2), ts, seed % 4 == 0)
        state, ts = env.step(luck, state, turns)
        return (state, ts), (turns, ts)

    (state, _), shown = jax.lax.scan(tick, (state, ts), None, length=num_ticks)
    return shown, state


def digest(tree):
    """sha256 over names, types and bytes."""
    text = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        x = np.asarray(x)
        text.update(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}".encode() + x.tobytes())
    return text.hexdigest()


def alone(seed):
    """Digest of one episode run by itself."""
    return digest(jax.jit(lambda s: episode(make("Search-v0", **OPTIONS), s))(np.int32(seed)))


@pytest.fixture(scope="module")
def largest():
    """1,024 episodes at once."""
    env = make("Search-v0", **OPTIONS)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda s: episode(env, s)))(np.arange(SIZES[-1], dtype=np.int32)))


def test_enough_happened(largest):
    (turns, ts), _ = largest
    assert len(np.unique(turns[..., 0])) == 10
    assert ts.info["births"][:, -1].sum() > 500 and ts.last[:, -1].sum() > 50
    assert len(np.unique(ts.info["tokens"][:, -1])) > 100


@pytest.mark.parametrize("size", SIZES[:-1])
def test_batch_sizes(largest, size):
    env = make("Search-v0", **OPTIONS)
    part = jax.jit(jax.vmap(lambda s: episode(env, s)))(np.arange(size, dtype=np.int32))
    assert differing(part, jax.tree.map(lambda x: x[:size], largest)) == []


def test_loop_of_steps(largest):
    env = play.game(**OPTIONS)
    sampled = jax.jit(lambda *args: play.sample(env.env, *args))
    for seed in (0, 4, 8, 9, 1_023):
        key = jax.random.fold_in(jax.random.key(11), seed)
        luck = jax.random.fold_in(key, 1)
        state, ts = env.reset(key, luck)
        for t in range(TICKS):
            turns = sampled(jax.random.fold_in(luck, 2), ts, seed % 4 == 0)
            state, ts = env.step(luck, state, turns)
            assert differing((turns, ts), jax.tree.map(lambda x: x[seed, t], largest[0])) == []  # noqa: B023
        assert differing(state, jax.tree.map(lambda x: x[seed], largest[1])) == []  # noqa: B023


def test_other_processes(largest):
    """Other hash seeds, disturbed global generators: equal digests, equal to this process's."""
    code = [
        "import random, sys, numpy",
        "random.seed(); numpy.random.seed(None)",
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})",
        "import test_determinism; print(test_determinism.alone(4))",
    ]
    running = []
    for hash_seed in ("1", "271828"):
        path = os.pathsep.join(p for p in (*sys.path, os.environ.get("PYTHONPATH", "")) if p)
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        running.append(
            subprocess.Popen([sys.executable, "-c", "\n".join(code)], env=environ, stdout=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=280)[0].strip() for process in running]
    expected = digest(jax.tree.map(lambda x: x[4], largest))
    assert said == [expected, expected]


def test_resets_from_one_key_differ():
    game = play.game(**OPTIONS)
    keys = jax.random.split(jax.random.key(0), 1_000)
    states, _ = jax.jit(jax.vmap(game.env.reset))(keys)
    starts = np.stack([np.asarray(states.task.packed), np.asarray(states.task.tie)], axis=1).reshape(1_000, -1)
    assert len(np.unique(starts, axis=0)) >= 990


def test_uncompiled():
    """Integers and flags equal, floats to 1e-5."""
    game = play.game(**OPTIONS)
    env, key, luck = game.env, jax.random.key(3), jax.random.key(4)
    spawn = env.harness.turn("spawn", role="searcher", count=2, chunk=2, brief="detailed")
    state, ts = game.reset(key, luck)
    states, shown, turns = [state], [ts], []
    for t in range(3):
        turn = np.array(game.sample(jax.random.key(9), ts))
        turn[0] = spawn if t == 0 else turn[0] * (turn[0, 0] != 7)
        state, ts = game.step(luck, state, turn)
        states.append(state)
        shown.append(ts)
        turns.append(turn)
    assert int(ts.info["births"]) >= 2 and int(ts.info["turns"]) > 2
    with jax.disable_jit():
        slow = env.reset(key, luck)
        compare(slow, (states[0], shown[0]))
        for t in range(3):
            slow = env.step(luck, slow[0], turns[t])
            compare(slow, (states[t + 1], shown[t + 1]))


def compare(slow, fast):
    """Leaf by leaf."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(slow), jax.tree.leaves(fast), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))
        else:
            assert (x == y).all(), jax.tree_util.keystr(path)
