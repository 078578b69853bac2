"""Runs: cut and resumed they end byte for byte as without a break; what cannot be used is refused in one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from ddpomdp import cli
from ddpomdp.options import UsageError
from ddpomdp_baselines import train as train_module
from ddpomdp_baselines import weights
from ddpomdp_baselines.checkpoints import restore
from ddpomdp_baselines.train import memory_bytes, planned, train

TINY = {"preset": "tiny"}
SIZES = {"groups": 2, "group_size": 3, "num_ticks": 16, "chunk": 64, "width": 8, "eval_episodes": 0, "save_every": 1}
UPDATES = 11


def run(out, updates=UPDATES, **changes):
    settings = {"env_options": TINY, "options": SIZES, "num_seeds": 2, "init": "random", **changes}
    return train("Search-v0", "dr_mas", updates=updates, out=out, **settings)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight") / "run")


def contents(folder):
    """What must agree byte for byte: curves, weights, configuration; not what the clock said."""
    files = [*folder.glob("seed-*/curves.*"), *folder.glob("seed-*.npz"), folder / "config.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def last_state(folder):
    """The newest checkpoint's state: weights, optimiser, counters. Orbax dates its files, so arrays are compared."""
    plan = planned("Search-v0", "dr_mas", TINY, SIZES, 0, 2, UPDATES, 0, "random")
    like = {"learners": plan.learners, "totals": {name: np.zeros(2) for name in train_module.COUNTED}}
    found = restore(folder, like, plan.config)
    assert found.update == UPDATES and not found.notes
    return jax.tree.leaves(found.state)


def test_cut_and_resumed_ten_times_it_ends_as_without_a_break(straight, tmp_path):
    for updates in range(1, UPDATES + 1):
        result = run(tmp_path / "run", updates=updates, resume=True)
    a, b = straight.curves, result.curves
    assert a == b and [row["update"] for row in a[0]] == list(range(1, UPDATES + 1))
    for x, y in zip(jax.tree.leaves(straight.params), jax.tree.leaves(result.params), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(last_state(straight.path), last_state(tmp_path / "run"), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    one, two = contents(straight.path), contents(tmp_path / "run")
    assert [name for name in one if one[name] != two.get(name)] == [] and one.keys() == two.keys()


def test_seeds_differ_and_a_seed_is_the_same_in_other_company(straight, tmp_path):
    """The second of two seeds, as the first of two others."""
    other = run(tmp_path / "run", updates=2, seed=1)
    assert other.curves[1] == straight.curves[1][:2]
    assert straight.curves[0] != straight.curves[1]


def test_curves_count_updates_tokens_and_seconds(straight):
    rows = straight.curves[0]
    assert rows[-1]["total_episodes"] == 6 * UPDATES
    assert rows[-1]["total_simulated_tokens"] == sum(row["simulated_tokens"] for row in rows)
    np.testing.assert_allclose(rows[-1]["total_simulated_s"], sum(row["simulated_s"] for row in rows))
    timing = [json.loads(line) for line in (straight.path / "seed-0" / "timing.jsonl").read_text().splitlines()]
    assert len(timing) == UPDATES and all(row["seconds"] > 0 for row in timing)


def test_weights_are_a_plain_file_that_fits_its_grammar_only(straight):
    plan = planned("Search-v0", "dr_mas", TINY, SIZES, 0, 1, 1, 0, str(straight.path / "seed-0.npz"))
    for x, y in zip(jax.tree.leaves(plan.learners.params), jax.tree.leaves(straight.of_seed(0)), strict=True):
        np.testing.assert_array_equal(x[0], y)
    with np.load(straight.path / "seed-0.npz", allow_pickle=False) as file:
        assert json.loads(str(file["about"]))["config"]["algorithm"] == "dr_mas"
    for about in ({}, {"network": {"depth": 3}, "grammar": {}}, []):
        np.savez(straight.path / "bad.npz", allow_pickle=False, about=np.asarray(json.dumps(about)))
        with pytest.raises(UsageError, match=r"bad\.npz holds no weights"):
            planned("Search-v0", "dr_mas", TINY, SIZES, 0, 1, 1, 0, str(straight.path / "bad.npz"))
    with pytest.raises(UsageError, match=r"another grammar.*counts|another grammar.*tools"):
        planned("Search-v0", "dr_mas", {}, SIZES, 0, 1, 1, 0, str(straight.path / "seed-0.npz"))


def test_another_run_is_refused_with_the_differences(straight, tmp_path):
    shutil.copytree(straight.path, tmp_path / "run")
    for changes, said in (
        ({"seed": 5}, r"seed: 0 -> 5"),
        ({"env_options": {**TINY, "poison": 0.5}}, r"poison: 0\.0 -> 0\.5"),
        ({"options": {**SIZES, "clip_low": 0.1}}, r"clip_low: 0\.2 -> 0\.1"),
        ({"env_options": {**TINY, "max_ticks": 20}}, r"harness: "),
    ):
        with pytest.raises(UsageError, match=said):
            run(tmp_path / "run", resume=True, **changes)
    with pytest.raises(UsageError, match="already holds checkpoints"):
        run(tmp_path / "run")


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(straight, tmp_path, capsys):
    shutil.copytree(straight.path, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    victim = max(
        (path for path in (newest / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    result = run(tmp_path / "run", resume=True)
    assert str(newest) in capsys.readouterr().err
    assert result.curves == straight.curves


def test_ten_updates_that_are_not_finite_end_the_run(straight, tmp_path, monkeypatch):
    def poisoned(params, spec, progress):
        from ddpomdp.pytree import replace

        return replace(params, weights={name: weight * np.float32("nan") for name, weight in params.weights.items()})

    shutil.copytree(straight.path, tmp_path / "run")
    monkeypatch.setattr(train_module, "scheduled", poisoned)
    with pytest.raises(FloatingPointError, match="10 updates in a row were not finite"):
        run(tmp_path / "run", updates=UPDATES + 30, resume=True)
    monkeypatch.undo()
    result = run(tmp_path / "run", updates=UPDATES + 10, resume=True)
    skipped = [row["skipped"] for row in result.curves[0]]
    assert sum(skipped) == 9 and all(np.isfinite(x).all() for x in jax.tree.leaves(result.params))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grpoo", "Search-v0"], "did you mean grpo"),
        (["grpo", "Serch-v0"], "did you mean Search-v0"),
        (["grpo", "Search-v0", "group_size=1"], "group_size: got 1"),
        (["dr_mas", "Search-v0", "group_size=1"], "group_size: got 1"),
        (["grpo", "Search-v0", "episodes=63"], "one update takes 64"),
        (["grpo", "Search-v0", "updates=0"], "updates: got 0"),
        (["grpo", "Search-v0", "updates=abc"], "updates: got 'abc'"),
        (["grpo", "Search-v0", "learning_rte=1"], "did you mean learning_rate"),
        (["grpo", "Search-v0", "env.model=stronk"], "did you mean strong"),
        (["grpo", "Search-v0", "env=3"], "env.KEY=value"),
        (["grpo", "Search-v0", "init=/nowhere.npz"], "/nowhere.npz"),
        (["grpo", "Search-v0", "env.preset=tiny"], "another grammar"),
        (["grpo", "Search-v0", "center=median"], "center"),
        (["grpo", "Search-v0", "learns=[boss]"], "boss"),
        (["grpo", "Search-v0", "devices=99"], "devices"),
        (["grpo", "Search-v0", "env.preset=tiny", "init=random", "groups=2000", "group_size=2000"], "GiB"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert said in err and "\n" not in err
    assert list(tmp_path.iterdir()) == []


def test_memory_is_estimated_before_anything_is_compiled():
    plan = planned("Search-v0", "dr_mas", TINY, SIZES, 0, 1, 1, 0, "random")
    small = memory_bytes(plan.update, 1)
    large = planned("Search-v0", "dr_mas", TINY, {**SIZES, "groups": 20}, 0, 1, 1, 0, "random")
    assert memory_bytes(large.update, 1)["episodes"] == 10 * small["episodes"]
    capacity, ticks, batch = 4, 16, 6
    assert small["episodes"] > capacity * ticks * batch * 4 * (2 * 5 + 4)  # turns, logp and more of every slot


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(tmp_path):
    """Episodes exactly; weights after three updates within 1e-5: sums over devices are in another order."""
    sizes = {**SIZES, "groups": 8, "num_ticks": 32}
    code = (
        "from ddpomdp_baselines.train import train\n"
        "for devices in (1, 8):\n"
        f"    options = {sizes!r} | {{'devices': devices}}\n"
        f"    train('Search-v0', 'dr_mas', env_options={TINY!r}, options=options, init='random', updates=3,"
        " out=str(devices))\n"
    )
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    rows = [[json.loads(x) for x in (tmp_path / d / "seed-0/curves.jsonl").read_text().splitlines()] for d in "18"]
    for one, eight in zip(*rows, strict=True):
        for name in ("reward", "quality", "births", "decisions", "simulated_tokens"):
            assert one[name] == pytest.approx(eight[name], rel=1e-6)
    with np.load(tmp_path / "1/seed-0.npz") as one, np.load(tmp_path / "8/seed-0.npz") as eight:
        for name in set(one.files) - {weights.ABOUT}:
            np.testing.assert_allclose(one[name], eight[name], atol=1e-5)


@pytest.mark.slow
def test_a_lagging_behaviour_policy_is_the_one_of_so_many_updates_ago(tmp_path):
    """With lag 2 the third update plays with the first weights; with weights per role and a second epoch too."""
    options = {**SIZES, "per_role": True, "epochs": 2, "entropy": 0.01, "kl_weight": 0.1, "learning_rate": 0.05}
    result = run(tmp_path / "run", updates=4, lag=2, options=options)
    apart = [abs(row["kl_behaviour"]) > 1e-6 for row in result.curves[0]]
    assert apart == [False, True, True, True]
    learner = planned("Search-v0", "dr_mas", TINY, options, 0, 1, 1, 2, "random").learners
    assert jax.tree.leaves(learner.past)[0].shape[:2] == (1, 2)


def test_files_of_a_run(straight):
    names = {path.name for path in Path(straight.path).iterdir()}
    assert {"config.json", "evaluation.json", "seed-0", "seed-1", "seed-0.npz", "seed-1.npz", "checkpoints"} <= names
