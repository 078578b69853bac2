"""Checkpoints: a state comes back bit for bit or not at all, whatever the moment of a kill and whatever is damaged.

Kills are tried in two ways. Processes are killed at random moments, inside Orbax's C++ too. And the folder is looked
at before every Python call that changes the disk or syncs it: what a kill at that moment would leave. Calls inside
TensorStore, which writes the arrays, cannot be singled out from Python; a full disk reaches them (a limit on the size
of files), and so do the random kills.
"""

import builtins
import csv
import errno
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from saving import DESCRIPTION, state, told

import ddpomdp
from ddpomdp.bench.lock import Busy
from ddpomdp.options import UsageError
from ddpomdp_baselines import checkpoints, curves
from ddpomdp_baselines.checkpoints import hold, restore

ROOT = Path(__file__).parents[1]
Moments = namedtuple("Moments", ["mu", "nu", "count"])


def save(folder, *updates, keep=9, description=DESCRIPTION):
    with hold(folder, description, state(0), resume=True, keep=keep) as run:
        for update in updates:
            run.save(update, state(update))
    return folder


def found(folder):
    """The update a run in `folder` would go on from, with all parts of the state in agreement; None for none."""
    restored = restore(folder, state(0), DESCRIPTION)
    if restored is None:
        return None
    assert told(restored.state) == {restored.update}
    return restored.update


def of(folder, update):
    return folder / "checkpoints" / f"{update:010d}"


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def bits(leaf):
    """Kind, dtype, shape and bytes of a leaf."""
    if isinstance(leaf, jax.Array):
        placed = (leaf.committed, leaf.sharding)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return ("key", str(leaf.dtype), placed, *bits(jax.random.key_data(leaf)))
        return ("jax", str(leaf.dtype), leaf.shape, leaf.weak_type, placed, np.asarray(leaf).tobytes())
    if isinstance(leaf, np.ndarray | np.generic):
        return (type(leaf), str(leaf.dtype), leaf.shape, leaf.tobytes())
    return (type(leaf), repr(leaf))


DTYPES = ["bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32"]
DTYPES += ["float8_e4m3fn", "bfloat16", "float16", "float32", "complex64"]
WIDE = ["int64", "uint64", "float64", "complex128"]  # where JAX is at its default of 32 bits, for NumPy only


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)

    def draw(name):
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        if name == "int4":
            return rng.integers(-8, 8, (5, 3)).astype(dtype)
        size = (5, 3 * dtype.itemsize)
        return rng.integers(0, 2 if name == "bool" else 256, size, np.uint8).view(dtype)  # NaNs and infinities too

    whole = {
        "jax": {name: jnp.array(draw(name)) for name in DTYPES},
        "numpy": {name: draw(name) for name in DTYPES + WIDE},
        "keys": (jax.random.key(1), jax.random.split(jax.random.key(2, impl="rbg"), 4), jax.random.PRNGKey(3)),
        "scalars": [np.float32(-0.0), np.uint64(2**64 - 1), np.array(True), jnp.uint32(2**32 - 1), jnp.float32(np.nan)],
        "python": [True, 2**31 + 7, -(2**63) + 1, 0.1, float("-inf")],
        "placed": jax.device_put(jnp.arange(3), jax.devices()[0]),
        "empty": [jnp.zeros((0, 3)), np.zeros(0, np.int8), None, (), {}],
        "moments": Moments(jnp.ones(2), {"a/b.c": jnp.zeros(1), "é ['x']": jnp.ones(1), "..": jnp.ones(2)}, 7),
        "adam": optax.adam(1e-3).init({"w": jnp.ones((2, 2))}),
    }
    with hold(tmp_path, {}, whole, resume=False) as run:
        run.save(1, whole)
    like = jax.tree.map(lambda leaf: leaf, whole)
    back = restore(tmp_path, like, {})
    assert back is not None
    assert jax.tree.structure(back.state) == jax.tree.structure(whole)
    before, after = (list(map(bits, jax.tree.leaves(tree))) for tree in (whole, back.state))
    assert len(before) > 50
    assert before == after


def test_restored_state_needs_no_new_compilation(tmp_path):
    step = jax.jit(
        lambda tree: jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x + 1, tree)
    )
    start = step({"w": jnp.ones(3), "opt": optax.adam(1e-3).init(jnp.ones(3)), "key": jax.random.key(0)})
    with hold(tmp_path, {}, start, resume=False) as run:
        run.save(1, step(start))
    compiled = step._cache_size()
    step(restore(tmp_path, start, {}).state)
    assert step._cache_size() == compiled


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (jnp.asarray(1.0), r"state\['x'\]: got a weakly typed array"),
        ("word", "got a str; allowed: arrays and Python numbers"),
        (np.array(["a"]), "got dtype <U1"),
        (np.array([None]), "got dtype object"),
        (np.zeros(2, "V3"), "got dtype"),
        (np.zeros(2, [("a", int)]), "got dtype"),
        (np.zeros(2, ">f4"), "got dtype >f4"),
        (2**63, "whole numbers of 64 bits"),
        (lambda: 0, "got a function"),
    ],
)
def test_leaves_that_would_not_come_back_are_refused(tmp_path, leaf, message):
    with hold(tmp_path, {}, {}, resume=False) as run, pytest.raises(ValueError, match=message):
        run.save(1, {"x": leaf})
    assert not list((tmp_path / "checkpoints").iterdir())


def test_the_last_ones_stay(tmp_path):
    one, far = {"count": 1}, 2**31 + 1
    with hold(tmp_path, {}, one, resume=False, keep=2) as run:
        for update in (0, 5, 40, far):
            run.save(update, one)
        assert sorted(os.listdir(tmp_path / "checkpoints")) == ["0000000040", "2147483649"]
        assert restore(tmp_path, one, {}).update == far
        for update in (far, 7, -1, 2.0**40):
            with pytest.raises(ValueError, match="update: got"):
                run.save(update, one)
    with pytest.raises(UsageError, match="keep: got 0"):
        save(tmp_path, keep=0)


def test_sums_are_those_of_sha256sum(tmp_path):
    checkpoint = of(save(tmp_path, 3), 3)
    done = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=checkpoint, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count(": OK")) == (0, len(files(checkpoint)) - 1)


# Kills


def kill_while_saving(folder, kills, seed):
    """Kill `kills` processes at random moments, one after the other in one folder; what each had said and left."""
    rng = random.Random(seed)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "envs", ROOT / "baselines", ROOT / "tests")))
    seen = []
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, ROOT / "tests" / "saving.py", folder],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            first = process.stdout.readline().split()
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
            said, errors = process.communicate()
        assert (first[:1], errors) == (["start"], "")
        start = int(first[1])
        seen.append((start, max([start, *(int(line.split()[1]) for line in said.splitlines())]), found(folder) or 0))
    return seen


def test_updates_past_256_are_told_by_all_parts(tmp_path):
    assert found(save(tmp_path / "run", 256, 263)) == 263  # bfloat16 alone would make 264 of it


@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_kills_at_random_moments(tmp_path, kills):
    folders = [tmp_path / "a", tmp_path / "b"]
    with ThreadPoolExecutor(2) as two:
        runs = list(two.map(kill_while_saving, folders, [kills // 2] * 2, [1, 2]))
    for seen in runs:
        left = 0
        for start, said, after in seen:
            assert start == left  # what a kill leaves is what the next process begins with
            assert said <= after <= said + 1  # no save that had returned is lost
            left = after
        assert left > 0
    assert sum(said > start for seen in runs for start, said, _ in seen) > kills // 4


CALLS = [(os, name) for name in ("rename", "replace", "fsync", "mkdir", "unlink", "remove", "rmdir")]
CALLS += [(io, "open"), (builtins, "open")]


@contextmanager
def before_calls(action):
    """Do `action(name)` before every Python call that changes the disk or syncs it, in whatever thread."""
    lock, inside = threading.RLock(), threading.local()

    def wrap(name, call):
        def wrapped(*args, **kwargs):
            mode = kwargs.get("mode", args[1] if len(args) > 1 else "r")
            if not getattr(inside, "action", False) and (name != "open" or set(mode) & set("wax+")):
                with lock:
                    inside.action = True
                    try:
                        action(name)
                    finally:
                        inside.action = False
            return call(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, wrap(name, getattr(module, name)))
        yield


def test_kill_at_every_call_of_a_save(tmp_path):
    """What a kill before each call of the first four saves would leave holds the last saved state or the next."""
    folder, calls, moments = tmp_path / "run", [], {}

    def look(name):
        calls.append(name)
        listing = tuple((str(path), path.stat().st_size) for path in files(folder) if path.exists())
        if listing in moments:
            return
        copy = tmp_path / f"moment{len(moments)}"
        moments[listing] = (copy, run.standing[-1] if run.standing else 0)
        for path in files(folder):
            target = copy / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(path, target)
            except FileNotFoundError:  # TensorStore goes on meanwhile, but only in what is not yet a checkpoint
                assert ".tmp" in str(path)

    with hold(folder, DESCRIPTION, state(0), resume=False, keep=2) as run:
        for update in range(1, 5):
            with before_calls(look):
                run.save(update, state(update))
    assert {"open", "mkdir", "rename", "fsync", "unlink", "rmdir"} <= set(calls)
    assert len(moments) > 60
    gone_on = 0
    for copy, last in moments.values():
        left = found(copy) or 0
        assert left in (last, last + 1)
        gone_on += left > last
    assert gone_on > 0
    for copy, _ in list(moments.values())[::10]:  # what is left over does not hinder the next process
        save(copy, 9)
        assert found(copy) == 9
        assert not list(copy.rglob("*.tmp"))


# The disk


def test_error_at_every_call_of_a_save(tmp_path):
    """No space at the n-th call: an error of one line, the checkpoint before is there, and the same save then works."""
    left = [0]

    def fail(name):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    refused = 0
    with hold(tmp_path, DESCRIPTION, state(0), resume=False, keep=2) as run:
        run.save(0, state(0))
        run.save(1, state(1))
        for call in range(1, 1000):
            left[0], last = call, run.standing[-1]
            with before_calls(fail):
                try:
                    run.save(last + 1, state(last + 1))
                except UsageError as error:
                    refused += 1
                    assert "No space left" in str(error)
                    assert len(str(error).splitlines()) == 1
            assert found(tmp_path) in (last, last + 1)
            assert run.standing[-1] in (last, found(tmp_path))
            if left[0] > 0:
                break
    assert refused > 40
    assert run.standing[-1] == last + 1


def test_full_disk_inside_the_writing_of_arrays(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with hold(tmp_path, DESCRIPTION, state(0), resume=False) as run:
        rng = np.random.default_rng(0)
        large = {"w": rng.random(100_000)}
        run.save(1, large)
        for limit in (0, 1, 30, 100, 300, 1000, 3000, 10_000, 100_000, 500_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                with pytest.raises(UsageError, match=r"cannot save to .*0000000002: .*large"):
                    run.save(2, large)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert os.listdir(tmp_path / "checkpoints") == ["0000000001"]
        run.save(2, large)
    assert restore(tmp_path, large, DESCRIPTION).update == 2


def test_folders_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to .*file.run: Not a directory"):
        save(tmp_path / "file" / "run", 1)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    save(tmp_path / "run", 1)
    with monkeypatch.context() as patch:
        patch.setattr("ddpomdp_baselines.checkpoints.lock", read_only)
        with pytest.raises(UsageError, match=r"cannot write to .*run: Read-only file system"):
            save(tmp_path / "run", 2)
    with hold(tmp_path / "run", DESCRIPTION, state(0), resume=True) as run:
        shutil.rmtree(tmp_path / "run")
        run.save(2, state(2))  # a removed folder is made anew
    assert found(tmp_path / "run") == 2


# Damage


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return save(tmp_path_factory.mktemp("two"), 1, 2)


def cut_to(share):
    return lambda data, _: data[: int(len(data) * share)]


def flip(data, rng):
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage", [cut_to(0), cut_to(0.5), cut_to(0.99), flip, None], ids=["cut 0%", "cut 50%", "cut 99%", "bit", "missing"]
)
def test_damage_to_each_file_is_found_and_the_one_before_taken(tmp_path, two, damage, capsys):
    folder = shutil.copytree(two, tmp_path / "run")
    rng = random.Random(0)
    tried = files(of(folder, 2))
    assert len(tried) > 8
    for path in tried:
        data = path.read_bytes()
        if damage:
            path.write_bytes(damage(data, rng))
            assert path.read_bytes() != data
        else:
            path.unlink()
        restored = restore(folder, state(0), DESCRIPTION)
        assert (restored.update, told(restored.state)) == (1, {1})
        (note,) = restored.notes
        assert note.startswith(f"{of(folder, 2)} is damaged and passed over: ")
        assert path.relative_to(of(folder, 2)).as_posix() in note
        assert capsys.readouterr().err == f"{note}\n"
        path.write_bytes(data)
    assert found(folder) == 2


def test_random_edits_are_found(tmp_path, two):
    folder = shutil.copytree(two, tmp_path / "run")
    rng = random.Random(1)
    paths = files(of(folder, 2))
    for _ in range(100):
        path = rng.choice(paths)
        data = path.read_bytes()
        edited = bytearray(data)
        for place in (rng.randrange(len(data)) for _ in range(rng.randint(1, 3))):
            edited[place] = rng.randrange(256)
        path.write_bytes(edited)
        assert found(folder) == (2 if edited == data else 1)
        path.write_bytes(data)


def test_a_file_too_many_and_a_file_moved_are_found(tmp_path, two):
    folder = shutil.copytree(two, tmp_path / "run")
    (of(folder, 2) / "state" / "more").write_text("x")
    assert "'state/more' does not match SHA256SUMS" in restore(folder, state(0), DESCRIPTION).notes[0]
    os.rename(of(folder, 2) / "state" / "more", of(folder, 2) / "moved")
    assert found(folder) == 1


def test_all_damaged_is_an_error_that_names_each(tmp_path, two):
    folder = shutil.copytree(two, tmp_path / "run")
    for update in (1, 2):
        (of(folder, update) / "checkpoint.json").unlink()
    with pytest.raises(UsageError) as error:
        save(folder, 3)
    assert all(f"{of(folder, update)} is damaged" in str(error.value) for update in (1, 2))
    assert "'checkpoint.json' is missing" in str(error.value)


def test_a_damaged_one_is_replaced_as_the_run_goes_on(tmp_path, two):
    folder = shutil.copytree(two, tmp_path / "run")
    (of(folder, 2) / "checkpoint.json").unlink()
    save(folder, 2)
    assert restore(folder, state(0), DESCRIPTION).notes == ()
    (of(folder, 2) / "SHA256SUMS").unlink()
    with hold(folder, DESCRIPTION, state(0), resume=True) as run:
        run.save(1 + 2**20, state(1 + 2**20))
    (of(folder, 1 + 2**20) / "SHA256SUMS").unlink()
    assert len(restore(folder, state(0), DESCRIPTION).notes) == 1  # the old damaged one went with the next save


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a thread of TensorStore's reports late
@pytest.mark.parametrize("name", ["checkpoint.json", "state/_METADATA", "state/manifest.ocdbt", "SHA256SUMS", "all"])
def test_files_with_right_sums_and_wrong_content_run_no_code(tmp_path, two, name):
    folder, marker = shutil.copytree(two, tmp_path / "run"), str(tmp_path / "marker")
    for path in files(of(folder, 2)):
        if name in ("all", path.relative_to(of(folder, 2)).as_posix()):
            path.write_bytes(pickle.dumps(Payload(marker)))
    if name != "SHA256SUMS":
        (of(folder, 2) / "SHA256SUMS").write_bytes(checkpoints._sums(of(folder, 2)))
        with pytest.raises(UsageError, match=r"is not the record of a checkpoint|Orbax cannot read"):
            found(folder)
    else:
        assert found(folder) == 1
    assert not os.path.exists(marker)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2; this version of ddpomdp reads format 1"),
        ({"update": 3}, "it is of update 3"),
        ({"leaves": None}, "no description or no leaves"),
        ({"leaves": {"state['key']": "key<fry>[]"}}, r"saved -> now: state\['optimizer'\]\[0\]: absent -> 'float32"),
    ],
)
def test_records_that_do_not_fit(tmp_path, two, change, message):
    folder = shutil.copytree(two, tmp_path / "run")
    path = of(folder, 2) / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (of(folder, 2) / "SHA256SUMS").write_bytes(checkpoints._sums(of(folder, 2)))
    with pytest.raises(UsageError, match=message):
        found(folder)


def test_arrays_that_are_not_those_of_the_record(tmp_path, two):
    folder = shutil.copytree(two, tmp_path / "run")
    save(tmp_path / "other")
    with hold(tmp_path / "other", DESCRIPTION, {"seen": np.zeros(4)}, resume=False) as run:
        run.save(2, {"seen": np.zeros(4)})
    shutil.rmtree(of(folder, 2) / "state")
    shutil.copytree(of(tmp_path / "other", 2) / "state", of(folder, 2) / "state")
    (of(folder, 2) / "SHA256SUMS").write_bytes(checkpoints._sums(of(folder, 2)))
    with pytest.raises(UsageError, match=r"the checkpoint says .* and holds nothing"):
        found(folder)
    path = of(folder, 2) / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"leaves": {"state['seen']": "int64[3]"}}))
    (of(folder, 2) / "SHA256SUMS").write_bytes(checkpoints._sums(of(folder, 2)))
    with pytest.raises(UsageError, match=r"the checkpoint says int64\[3\] and holds float64\[4\]"):
        restore(folder, {"seen": np.zeros(3, np.int64)}, DESCRIPTION)


# Another run


def without(name):
    return {key: part for key, part in state(0).items() if key != name}


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        (
            {**state(0), "optimizer": (*state(0)["optimizer"], jnp.zeros(3))},
            "state['optimizer'][2]: absent -> 'float32[3]'",
        ),
        (without("optimizer"), "state['optimizer'][1]: 'int32[]' -> absent"),
        (without("samples"), "state['samples']: 'int' -> absent"),
        (without("key"), "state['key']: 'key<fry>[]' -> absent"),
        ({**state(0), "key": jax.random.key(0, impl="rbg")}, "state['key']: 'key<fry>[]' -> 'key<rbg>[]'"),
        ({**state(0), "key": state(0)["raw_key"]}, "state['key']: 'key<fry>[]' -> 'uint32[2]'"),
        ({**state(0), "samples": np.int32(0)}, "state['samples']: 'int' -> 'int32[]'"),
        ({**state(0), "seen": np.zeros(4, np.int64)}, "state['seen']: 'int64[3]' -> 'int64[4]'"),
    ],
)
def test_another_structure_is_refused_with_the_differences(two, like, difference):
    with pytest.raises(UsageError) as error:
        restore(two, like, DESCRIPTION)
    assert str(error.value).startswith(f"{of(two, 2)} does not belong to this run; saved -> now: ")
    assert difference in str(error.value)


def test_saved_without_a_part(tmp_path):
    for name in ("optimizer", "samples", "key"):
        with hold(tmp_path / name, DESCRIPTION, without(name), resume=False) as run:
            run.save(1, without(name))
        with pytest.raises(UsageError, match=rf"state\['{name}'\].*: absent -> "):
            found(tmp_path / name)


def test_parts_are_restored_when_asked_for(two):
    params = restore(two, {"params": state(0)["params"]}, DESCRIPTION, partial=True)
    assert bits(params.state["params"]["w"]) == bits(state(2)["params"]["w"])
    with pytest.raises(UsageError, match=r"state\['critic'\]: absent -> 'float32\[1\]'"):
        restore(two, {"critic": jnp.zeros(1)}, DESCRIPTION, partial=True)


def describe(preset="tiny", **changes):
    env = ddpomdp.make("Search-v0", preset=preset)
    settings = {"algorithm": "grpo", "seed": 0, "updates": 10, "options": {"lr": 1e-3}, "out": "a"} | changes
    return checkpoints.describe(env, **settings)


def test_another_run_is_refused_with_the_differences(tmp_path):
    saved = describe()
    assert saved["versions"].keys() > {"ddpomdp", "jax", "orbax-checkpoint"}
    with hold(tmp_path, saved, state(0), resume=False) as run:
        run.save(1, state(1))

    def refusal(now, **options):
        with pytest.raises(UsageError) as error, hold(tmp_path, now, state(0), resume=True, **options):
            pass
        return str(error.value).split("; saved -> now: ")[1]

    assert refusal(describe(seed=1)) == "seed: 0 -> 1"
    assert refusal(describe(seed=True)) == "seed: 0 -> True"
    assert refusal(describe(algorithm="ppo")) == "algorithm: 'grpo' -> 'ppo'"
    assert refusal(describe(options={"lr": 1e-2, "clip": 1})) == "options.lr: 0.001 -> 0.01; options.clip: absent -> 1"
    assert refusal({**saved, "env_version": "9"}).startswith(f"env_version: '{saved['env_version']}' -> '9'")
    other = describe("small")["harness"]
    assert refusal(describe("small")) == f"harness: '{saved['harness']}' -> '{other}'"
    versions = {**saved["versions"], "ddpomdp": "99.0"}
    assert refusal({**saved, "versions": versions}) == f"versions.ddpomdp: '{ddpomdp.__version__}' -> '99.0'"
    with jax.threefry_partitionable(False):
        assert refusal(describe()) == "switches.jax_threefry_partitionable: True -> False"
    changed = describe(updates=20, out="b", seed=3)
    assert refusal(changed, may_differ=("updates", "out")) == "seed: 0 -> 3"
    assert refusal({**saved, "options": {"lr": 1.0}}, may_differ=("option",)).startswith("options.lr")
    with hold(
        tmp_path, {**changed, "options": {}}, state(0), resume=True, may_differ=("updates", "out", "seed", "options")
    ):
        pass


def test_a_fresh_run_does_not_go_where_one_is(tmp_path):
    assert found(tmp_path / "nowhere") is None
    with hold(tmp_path, DESCRIPTION, state(0), resume=True) as run:  # nothing to resume: from the beginning
        assert (run.start.update, told(run.start.state)) == (0, {0})
    assert found(tmp_path) is None
    save(tmp_path, 1)
    with (
        pytest.raises(UsageError, match="already holds checkpoints; resume that run or choose another folder"),
        hold(tmp_path, DESCRIPTION, state(0), resume=False),
    ):
        pass


def test_one_process_per_folder(tmp_path):
    with hold(tmp_path, DESCRIPTION, state(0), resume=True) as run:
        run.save(1, state(1))
        with pytest.raises(Busy, match=f"in use by process {os.getpid()}"):
            save(tmp_path, 2)
        assert found(tmp_path) == 1  # readers may look
    assert save(tmp_path, 2)


# Curves


def test_a_resumed_run_equals_a_run_without_a_break(tmp_path):
    """Parameters, optimizer, schedule, key and logs, byte for byte, with nine breaks at random moments."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 40))

    @jax.jit
    def step(params, moments, key):
        key, now = jax.random.split(key)
        loss, slope = jax.value_and_grad(lambda w: jnp.sum((w - jax.random.normal(now, w.shape)) ** 2))(params)
        change, moments = optimizer.update(slope, moments)
        return optax.apply_updates(params, change), moments, key, loss

    def train(folder, until):
        first = jnp.ones(5)
        with hold(folder, {}, (first, optimizer.init(first), jax.random.key(0)), resume=True) as run:
            log, now = curves.Curves(folder, run.start.update), run.start.state
            for update in range(run.start.update + 1, until + 1):
                *now, loss = step(*now)
                log.write(update, {"loss": loss, "bad": float("nan") if update % 7 == 0 else update / 3})
                log.write_timing(update, {"seconds": time.perf_counter()})
                if update % 4 == 0:
                    log.sync()
                    run.save(update, tuple(now))

    train(tmp_path / "straight", 40)
    rng = random.Random(0)
    breaks = sorted(rng.sample(range(1, 40), 9))
    for until in (*breaks, 40):
        train(tmp_path / "resumed", until)
        for name in curves.FILES:  # as a kill in the middle of a row
            with open(tmp_path / "resumed" / name, "ab") as file:
                file.write(b'{"update": 1' if until < 40 else b"")
    for name in ("curves.jsonl", "curves.csv"):
        data = (tmp_path / "straight" / name).read_bytes()
        assert data.count(b"\n") == 40 + name.endswith("csv")
        assert (tmp_path / "resumed" / name).read_bytes() == data
    assert len((tmp_path / "resumed" / "timing.jsonl").read_text().splitlines()) == 40
    like = (jnp.ones(5), optimizer.init(jnp.ones(5)), jax.random.key(0))
    ends = [restore(tmp_path / name, like, {}) for name in ("straight", "resumed")]
    assert ends[0].update == ends[1].update == 40
    straight, resumed = (list(map(bits, jax.tree.leaves(end.state))) for end in ends)
    assert straight == resumed


def test_rows_are_strict_and_both_files_agree(tmp_path):
    log = curves.Curves(tmp_path, 0)
    rows = [
        {
            "return": jnp.float32(0.1),
            "steps": np.int64(2**40),
            "ok": np.bool_(True),
            "note": 'a "b", é\u2028',
            "eval": None,
        },
        {"return": float("nan"), "steps": float("-inf"), "ok": False, "note": "", "eval": 1e-300},
    ]
    for update, row in enumerate(rows, 1):
        log.write(update, row)
        lines = (tmp_path / "curves.jsonl").read_text("utf-8").split("\n")[:-1]
        read = [json.loads(line, parse_constant=pytest.fail) for line in lines]
        assert len(read) == update
    assert read[1] == {
        "update": 2, "return": None, "steps": None, "ok": False, "note": "", "eval": 1e-300,
        "nonfinite": {"return": "nan", "steps": "-inf"},
    }  # fmt: skip
    with open(tmp_path / "curves.csv", encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file, strict=True)
    assert first == {
        "update": "1", "return": repr(read[0]["return"]), "steps": str(2**40), "ok": "true",
        "note": rows[0]["note"], "eval": "",
    }  # fmt: skip
    assert (second["return"], second["steps"], second["eval"]) == ("nan", "-inf", "1e-300")


@pytest.mark.parametrize(
    ("update", "values", "message"),
    [
        (3, {"a": 1.0}, "update: got 3, allowed: whole numbers 4 to"),
        (4, {"b": 1.0}, "row 4 has update, b; allowed: update, a"),
        (4, {"a": [1.0]}, "a: allowed: single numbers"),
        (4, {"a": jnp.ones(2)}, "a: allowed: single numbers"),
        (4, {"a": 1.0, "update": 3}, "got a value named update"),
        (4, {"a": 1.0, "nonfinite": 3}, "got a value named nonfinite"),
    ],
)
def test_rows_that_are_refused(tmp_path, update, values, message):
    log = curves.Curves(tmp_path, 2)
    log.write(3, {"a": 0.5})
    with pytest.raises(ValueError, match=message):
        log.write(update, values)
    log.write(4, {"a": 0.25})
    assert (tmp_path / "curves.csv").read_text() == "update,a\n3,0.5\n4,0.25\n"


@pytest.mark.parametrize(
    "line", [b"{}\n", b"[]\n", b"{\n", b"\xff\n", b'{"update": NaN}\n', b'{"update": "1"}\n', b"\n"]
)
def test_a_line_that_is_no_row_is_named_and_nothing_changed(tmp_path, line):
    path = tmp_path / "curves.jsonl"
    path.write_bytes(b'{"update": 1, "a": 2}\n' + line)
    with pytest.raises(UsageError, match=r"curves\.jsonl line 2 is not a row of curves: "):
        curves.Curves(tmp_path, 1)
    assert path.read_bytes() == b'{"update": 1, "a": 2}\n' + line


def test_curves_on_a_bad_disk(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write the curves in .*: No such file or directory"):
        curves.Curves(tmp_path / "nowhere", 0)
    log = curves.Curves(tmp_path, 0)
    shutil.rmtree(tmp_path)
    with pytest.raises(UsageError, match=r"cannot write the curves in .*: No such file or directory"):
        log.write(1, {"a": 1})


def test_tensorboard_where_there_is_one(tmp_path, monkeypatch):
    made = []

    class SummaryWriter:
        def __init__(self, **options):
            made.append(options)

        def add_scalar(self, *scalar):
            made.append(scalar)

        def flush(self):
            pass

    for name in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    curves.Curves(tmp_path, 0, tensorboard=True).write(1, {"a": 1})
    assert not (tmp_path / "tensorboard").exists()
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    curves.Curves(tmp_path, 1).write(2, {"a": 1})
    assert made == []
    curves.Curves(tmp_path, 2, tensorboard=True).write(3, {"a": jnp.float32(0.5)})
    assert made == [{"log_dir": str(tmp_path / "tensorboard"), "purge_step": 3}, ("a", 0.5, 3)]
