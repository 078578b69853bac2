"""Faults that users of other projects reported, tried here: docs/faults.md names the test of each.

This file holds those that no other file is about, and the test that the page names tests that exist.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest

import ddpomdp
from ddpomdp import wrappers
from ddpomdp.pytree import replace
from ddpomdp.rollouts import renewed

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"
NUMBERS = 98  # rows of the page
NO_TEST = re.compile(r"(cannot happen|comes later|not here): \S")  # how a reason begins


# The page ------------------------------------------------------------------------------------------------------------


def rows_of_the_page():
    """{number: last cell} of the table."""
    cells = [line.strip().strip("|").split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    return {row[0].strip(): row[-1].strip() for row in cells if re.fullmatch(r"B\d{3}", row[0].strip())}


def named_in(path):
    """Names of the tests in a file, read and not imported; of those in a class, `Class::test`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return {name for name in found if name.split("::")[-1].startswith("test_")}


def test_every_row_of_the_page_names_tests_that_exist_or_a_reason():
    rows = rows_of_the_page()
    assert len(rows) == NUMBERS and list(rows) == sorted(rows)
    known, named = {}, 0
    for number, cell in rows.items():
        tests = re.findall(r"`(test_\w+)::([\w:]+)`", cell)
        assert tests or NO_TEST.match(cell), f"{number}: {cell}"
        for file, test in tests:
            path = ROOT / "tests" / f"{file}.py"
            assert path.exists(), f"{number}: no tests/{file}.py"
            known.setdefault(file, named_in(path))
            assert test in known[file], f"{number}: no {test} in tests/{file}.py"
            named += 1
    assert named > NUMBERS / 2
    assert "test_every_row_of_the_page_names_tests_that_exist_or_a_reason" in named_in(Path(__file__))


# Episodes that must repeat, or must not -------------------------------------------------------------------------------

RESETS = """
import random, sys, numpy
disturb = {disturb}
if disturb:
    random.seed(); numpy.random.seed(None)
import gymnasium, ddpomdp
single = gymnasium.make("ddpomdp:ddpomdp/Search-v0", preset="tiny").unwrapped
team = ddpomdp.parallel_env("Search-v0", preset="tiny")
for env in (single, team):
    for seed in (7, *(None,) * 5):
        if disturb:
            random.random(); numpy.random.random(3)
        print(env.reset(seed=seed)[0], flush=True)
"""


def test_unseeded_resets_follow_from_the_seed_before_in_any_process():
    said = []
    for disturb, hash_seed in ((False, "1"), (True, "31337")):
        path = os.pathsep.join(p for p in (*sys.path, os.environ.get("PYTHONPATH", "")) if p)
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        code = [sys.executable, "-c", RESETS.format(disturb=disturb)]
        said.append(subprocess.run(code, env=environ, capture_output=True, text=True, timeout=280, check=True).stdout)
    assert said[0] == said[1] and said[0].count("action_mask") == 12


def test_what_a_reset_draws_is_not_correlated():
    """Whether a row is hard, answerable, poisoned, and its values, over 10,000 resets: all pairs of them."""
    env = ddpomdp.make("Search-v0", preset="tiny", poison=0.3, unanswerable=0.3)
    keys = jax.random.split(jax.random.key(0), 10_000)
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    facts = jax.jit(jax.vmap(lambda k, u: env.rules.task.init(k, u, env.params.task)))(keys, luck)
    packed = np.asarray(facts.packed)
    fields = [(packed >> shift) & mask for shift, mask in ((0, 7), (3, 7), (9, 1), (10, 1), (11, 1), (12, 0xFFFF))]
    drawn = np.concatenate([*fields, np.asarray(facts.tie) >> 8, np.asarray(facts.reject)], axis=1).astype(float)
    assert drawn.std(axis=0).min() > 0.1
    assert packed.shape[1] == 6 and drawn.shape == (10_000, 8 * 6)
    correlation = np.corrcoef(drawn.T) - np.eye(drawn.shape[1])
    assert np.abs(correlation).max() < 0.05  # of 1,128 pairs; 3.9 deviations of chance are 0.039
    assert np.sqrt((correlation**2).sum() / (48 * 47)) < 0.0105  # chance gives 0.0100
    poison = (packed >> 6) & 7  # never the truth, so these two are not independent, and the test would see it
    assert abs(np.corrcoef(poison[:, 0] == 0, packed[:, 0] & 7)[0, 1]) > 0.05


def test_episodes_of_automatic_resets_start_anew():
    """256 environments, each reset 20 times over by the keys that `Vector` hands on."""
    env = ddpomdp.make("Search-v0", preset="tiny")
    vector = wrappers.Vector(env, 256)

    @jax.jit
    def starts(key):
        def again(key, _):
            state, _, luck, key = vector._fresh(key, None)
            return key, (state.task.packed, state.task.tie, jax.random.key_data(luck))

        return jax.vmap(lambda key: jax.lax.scan(again, key, length=20)[1])(jax.random.split(key, 256))

    packed, tie, luck = (np.asarray(x) for x in starts(jax.random.key(0)))
    assert len(np.unique(luck.reshape(-1, 2), axis=0)) == 256 * 20
    rows = np.concatenate([packed.view(np.uint32), tie], axis=-1)
    assert all(len(np.unique(of_one, axis=0)) == 20 for of_one in rows)
    assert len(np.unique(rows.reshape(256 * 20, -1), axis=0)) == 256 * 20


def test_a_new_life_starts_from_a_fresh_memory():
    """Slots: stays, is freed, is filled anew, is filled for the first time, stays empty."""
    told = lambda uid, alive: SimpleNamespace(uid=jnp.array(uid), alive=jnp.array(alive))  # noqa: E731
    policy = SimpleNamespace(carry=lambda env: (jnp.full(5, -1), jnp.full((5, 2), 0.5)))
    memory = (jnp.arange(5), jnp.arange(10.0).reshape(5, 2))
    before = told([0, 1, 2, -1, -1], [True, True, True, False, False])
    after = told([0, 1, 7, 8, -1], [True, False, True, True, False])
    count, vector = renewed(None, policy, memory, before, after)  # pyright: ignore[reportArgumentType]
    assert count.tolist() == [0, 1, -1, -1, 4]
    assert vector.tolist() == [[0, 1], [2, 3], [0.5, 0.5], [0.5, 0.5], [8, 9]]


# Names, options, numbers ----------------------------------------------------------------------------------------------


MARKER = "raise SystemExit('imported')\n"


@pytest.mark.parametrize("name", ["marker_of_b123:Search-v0", "marker_of_b123", "marker_of_b123:make"])
def test_an_id_never_imports_a_module(name, tmp_path, monkeypatch, capsys):
    from ddpomdp import cli

    (tmp_path / "marker_of_b123.py").write_text(MARKER)
    monkeypatch.syspath_prepend(tmp_path)
    for call in (ddpomdp.make, ddpomdp.parallel_env, ddpomdp.text_env):
        with pytest.raises(ValueError, match="unknown environment"):
            call(name)
    assert cli.main(["play", name]) == 2
    assert "unknown environment" in capsys.readouterr().err
    assert "marker_of_b123" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):  # what an import would have done
        __import__("marker_of_b123")


OTHER = {
    "topology": "hierarchical",
    "model": "weak",
    "reward": "hybrid",
    "frozen_roles": ("searcher",),
    "max_turns": 9,
    "max_tokens": 9_000,
    "lead_blocks": False,
    "strict_order": True,
    "counts": (1, 2),
    "chunks": (3,),
    "delegate_chunks": (2, "even"),
    "delegate_briefs": ("short",),
}


def described(env):
    """{what: value} of all that an environment is made of."""
    numbers = jax.tree_util.tree_leaves_with_path(env.params)
    return {
        "harness": env.harness.digest,
        "spec": env.spec,
        "topology": env.rules.topology,
        "config": env.rules.config,
        "offered": {name: numbers.tolist() for name, numbers in env.rules.offered.items()},
        **{jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in numbers},
    }


def test_every_option_changes_what_an_environment_is():
    usual = ddpomdp.make("Search-v0", preset="tiny")
    before = described(usual)
    for name, value in usual.options.items():
        if name in ("preset",):
            continue
        other = OTHER.get(name, value * 2 if isinstance(value, int | float) and value else 0.5)
        env = ddpomdp.make("Search-v0", **{**{k: v for k, v in usual.options.items() if k != "preset"}, name: other})
        assert env.options[name] != value
        after = described(env)
        assert [part for part in before if before[part] != after.get(part)], name
    assert len(usual.options) > 20


# Params that say nothing until tasks with these channels exist, or that this play never asks for.
SILENT = {"['role']", "['process']", "['debate']"}


@pytest.mark.slow
def test_every_number_of_params_has_an_effect():
    """Each leaf alone made large, or small: some of 64 episodes come out otherwise, in 40 ticks of random leads."""
    env = play.make_shape("swarm")
    keys = jax.random.split(jax.random.key(1), 64)

    @jax.jit
    def outcome(params):
        def one(key):
            luck = jax.random.fold_in(key, 1)
            state, ts = env.reset(key, luck, params)

            def tick(carry, t):
                state, ts = carry
                turns = play.sample(env, jax.random.fold_in(luck, 2), ts, t > 30, t % 3 == 0)
                works = (ts.observation.self[:, 0] == 0) & (t % 4 > 0)
                turns = jnp.where(works[:, None], env.worker_turns(ts), turns)
                state, ts = env.step(luck, state, turns, params)
                return (state, ts), (ts.reward, ts.info, ts.observation, ts.legal)

            return jax.lax.scan(tick, (state, ts), jnp.arange(40))[1]

        return jax.vmap(one)(keys)

    usual = jax.tree.map(np.asarray, outcome(env.params))
    leaves, form = jax.tree_util.tree_flatten_with_path(env.params)

    def matters(i, leaf):
        values = [x for _, x in leaves]
        values[i] = leaf.astype(values[i].dtype)
        return bool(play.differing(usual, outcome(jax.tree.unflatten(form, values))))

    silent = []
    for i, (path, leaf) in enumerate(leaves):
        large = leaf * 4 + 1 if leaf.dtype == jnp.int32 else 1 - leaf
        small = leaf // 100 + 1 if leaf.dtype == jnp.int32 else leaf * 0.01
        if not matters(i, large) and not matters(i, small):
            silent.append(jax.tree_util.keystr(path))
    assert len(leaves) > 50
    assert [name for name in silent if not any(part in name for part in SILENT)] == []
    assert len(silent) == len(SILENT)


# Calls ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_500_000_calls_out_of_range_touch_nobody():
    """Whatever is not legal is a wait, counted, and the same for everyone as a wait would have been."""
    env, many = ddpomdp.make("Search-v0", preset="tiny"), 1_250
    step, reset = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(env.reset))
    legal = jax.jit(jax.vmap(env.harness.is_legal))
    sample = jax.jit(jax.vmap(lambda key, ts: play.sample(env, key, ts, False)))
    keys = jax.random.split(jax.random.key(2), many)
    rng = np.random.default_rng(0)
    odd = np.array([-(2**31), -(2**31) + 1, -1, -2, 4, 5, 99, 2**31 - 1, 2**30, 65_535], np.int32)
    (state, ts), tried, counted = reset(keys, keys), 0, 0
    while tried < 500_000:
        turns = np.asarray(sample(keys, ts))
        bad, shape = turns.copy(), turns.shape
        where = rng.integers(0, shape[2], shape[:2])[..., None]
        far = rng.integers(-(2**31), 2**31, shape[:2])
        token = np.where(rng.random(shape[:2]) < 0.5, rng.choice(odd, shape[:2]), far).astype(np.int32)
        np.put_along_axis(bad, where, token[..., None], axis=2)
        alive = np.asarray(ts.alive)
        ok = np.asarray(legal(ts.legal, bad))
        waits = np.where(ok[..., None], bad, 0)
        got, shown = step(keys, state, bad)
        same, expected = step(keys, state, waits)
        tried += int((alive & ~ok).sum())
        counted += int((got.totals.illegal - state.totals.illegal).sum())
        forget = lambda s: replace(  # noqa: E731
            s,
            lives=replace(s.lives, last_code=None, last_value=None),
            totals=replace(s.totals, illegal=None),
        )
        assert play.differing(forget(got), forget(same)) == []
        assert (np.asarray(shown.events.valid) == (alive & ok)).all()
        assert (np.asarray(expected.events.valid) == alive).all()
        state, ts = step(keys, state, turns)
        if bool(ts.last.any()):
            state, ts = reset(jax.vmap(lambda k: jax.random.fold_in(k, tried))(keys), keys)  # noqa: B023
    assert counted == tried


# Long runs ------------------------------------------------------------------------------------------------------------


def test_logs_count_past_31_bits(tmp_path):
    """The counters of files are whole numbers of any size: a run that crosses 2^31 goes on in order."""
    from ddpomdp_baselines import checkpoints, curves

    first = 2**31 - 10
    log = curves.Curves(tmp_path, 0)
    for update in range(first, first + 20):
        log.write(update, {"total_simulated_tokens": update * 10_000})
    read = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text("utf-8").splitlines()]
    assert [row["update"] for row in read] == list(range(first, first + 20))
    assert [row["total_simulated_tokens"] for row in read] == [10_000 * u for u in range(first, first + 20)]
    table = (tmp_path / "curves.csv").read_text("utf-8").splitlines()
    assert table[-1] == f"{first + 19},{10_000 * (first + 19)}"
    for update in (2**33, first, 2**31):
        checkpoints._path(tmp_path, update).mkdir(parents=True)
    assert checkpoints._updates(tmp_path) == [first, 2**31, 2**33]
    curves.Curves(tmp_path, first + 14).write(first + 15, {"total_simulated_tokens": 1})
    again = [json.loads(line)["update"] for line in (tmp_path / "curves.jsonl").read_text("utf-8").splitlines()]
    assert again == list(range(first, first + 16))


def test_totals_of_the_longest_presets_fit():
    """Everyone searching in every tick stays far below 2^31 tokens; a million such episodes are summed on the host."""
    from ddpomdp.bench.stats import summarise
    from ddpomdp_envs.search_env import PRESETS

    most = 0
    for preset in PRESETS:
        env = ddpomdp.make("Search-v0", preset=preset)
        turns = min(env.spec.max_turns or 2**31, env.spec.max_ticks * env.spec.capacity)
        most = max(most, turns * int(env.params.task.call_tokens))
    assert 2**24 < most < 2**31 / 4
    assert summarise({0: [10_000] * 1_000_000})["mean"] == 10_000
