"""Checkpoints of a training run.

    <folder>/checkpoints/0000000040/    the state after update 40
        state/                          the arrays, by Orbax, each under its place in the state
        checkpoint.json                 update, description of the run, shape and dtype of every array
        SHA256SUMS                      of every other file, as `sha256sum -c` reads it

A checkpoint is written under a name that begins with a dot, synced and renamed, so it is absent or complete.
What is damaged later is found by its sums. Loading reads numbers and text and runs no code.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from ddpomdp._version import __version__
from ddpomdp.bench import strictjson
from ddpomdp.bench.lock import lock
from ddpomdp.options import UsageError, whole

FORMAT = 1
_FOLDER, _RECORD, _SUMS, _STATE = "checkpoints", "checkpoint.json", "SHA256SUMS", "state"
_NAME = re.compile(r"\d{10,19}")
_PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint")
_SWITCHES = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
)
_SHOWN = 8  # differences and damages in one message

State = TypeVar("State")


@dataclass(frozen=True)
class Restored(Generic[State]):
    """A state to go on from."""

    update: int  # number of updates done
    state: State
    notes: tuple[str, ...] = ()  # a line for each damaged checkpoint that was passed over


@dataclass
class Run(Generic[State]):
    """A run's checkpoints, open for writing; got from `hold`."""

    folder: Path
    description: Mapping[str, Any]
    keep: int
    start: Restored[State]  # where to begin
    standing: list[int]  # the updates whose checkpoints are there to go back to, in ascending order

    def save(self, update: int, state: State) -> None:
        """Save `state` as it is after `update` updates; when this returns, the checkpoint is on the disk.

        Of the checkpoints the newest `keep` stay, and none that was passed over as damaged.

        Args:
          update: number of updates done, larger than at the last save.
          state: pytree of arrays (typed and raw random keys, NumPy and JAX) and Python numbers.

        Raises:
          ValueError: `update` does not grow, or a leaf is of a kind that cannot be restored as it was.
          UsageError: the disk refuses; the earlier checkpoints are as before and a later save may succeed.
        """
        whole("update", update, self.standing[-1] + 1 if self.standing else 0, 10**19 - 1)
        leaves = _leaves(state)
        record = {
            "format": FORMAT,
            "update": update,
            "description": self.description,
            "leaves": {place: _kind(place, leaf) for place, leaf in leaves.items()},
        }
        arrays = {place: _to_numpy(leaf) for place, leaf in leaves.items()}
        arrays = {place: array for place, array in arrays.items() if array.size}  # Orbax takes no empty ones
        final = _path(self.folder, update)
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            _remove(temporary)
            temporary.mkdir(parents=True)
            with ocp.PyTreeCheckpointer() as orbax:
                orbax.save(temporary.absolute() / _STATE, arrays)
            (temporary / _RECORD).write_text(strictjson.dumps(record, indent=1), "utf-8")
            (temporary / _SUMS).write_bytes(_sums(temporary))
            for folder, _, files in os.walk(temporary):
                for name in (*files, "."):
                    _sync(Path(folder, name))
            _remove(final)  # a damaged one, or it would have been the start
            os.rename(temporary, final)
            _sync(final.parent)
        except Exception as error:  # Orbax and TensorStore report a full disk by several types
            shutil.rmtree(temporary, ignore_errors=True)
            raise UsageError(f"cannot save to {final}: {_first_line(error)}") from error
        self.standing = [*self.standing, update][-self.keep :]
        try:
            for other in set(_updates(self.folder)) - set(self.standing):
                _remove(_path(self.folder, other))
        except OSError as error:
            raise UsageError(f"cannot remove an old checkpoint in {final.parent}: {error.strerror}") from error


@contextmanager
def hold(
    folder: str | os.PathLike[str],
    description: Mapping[str, Any],
    state: State,
    *,
    resume: bool,
    keep: int = 3,
    may_differ: Sequence[str] = (),
) -> Iterator[Run[State]]:
    """Hold `folder` for a run and find where to begin: `.start` of what is yielded, then `.save` as training goes on.

    Args:
      folder: folder of the run; made if absent.
      description: what the run is, JSON data, such as `describe` gives; a resumed run must agree with all of it.
      state: the state before the first update; also the structure, shapes and dtypes that a checkpoint must have.
      resume: go on from the newest checkpoint that is whole, from `state` if none was ever made.
      keep: number of checkpoints that stay, at least 1; with 1, damage to it ends the run.
      may_differ: dotted keys of `description` that may differ on resume, each with all below it.

    Raises:
      UsageError: another process holds the folder (`Busy`), it has checkpoints and `resume` is off, it cannot be
        written, or `restore` refuses.
    """
    whole("keep", keep, 1, 10**6)
    path, description = Path(folder), strictjson.strict(dict(description))
    with ExitStack() as held:
        try:
            (path / _FOLDER).mkdir(parents=True, exist_ok=True)
            held.enter_context(lock(path))
            for leftover in (path / _FOLDER).glob(".*.tmp"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {error.strerror}") from None
        if not resume and _updates(path):
            raise UsageError(f"{path} already holds checkpoints; resume that run or choose another folder")
        found = restore(path, state, description, may_differ=may_differ)
        standing = [update for update in _updates(path) if found and update <= found.update]
        yield Run(path, description, keep, found or Restored(0, state), standing)


def restore(
    folder: str | os.PathLike[str],
    like: State,
    expect: Mapping[str, Any],
    *,
    may_differ: Sequence[str] = (),
    partial: bool = False,
) -> Restored[State] | None:
    """The newest checkpoint of the run in `folder` that is whole, or None if none was ever made; for reading only.

    One that is damaged is named on stderr and in `notes`, with what is wrong, and the one before it is taken.

    Args:
      folder: folder of the run.
      like: a state with the structure, shapes and dtypes to restore. Its leaves also say whether NumPy, JAX (and on
        which device) or Python numbers come back.
      expect: what the description of the run must be.
      may_differ: dotted keys of the description that may differ, each with all below it.
      partial: `like` may lack some of what was saved, as when only the parameters are wanted.

    Raises:
      UsageError: every checkpoint is damaged; or the newest whole one is of another run or another structure, with
        the differences.
    """
    notes: list[str] = []
    for update in reversed(_updates(Path(folder))):
        path = _path(Path(folder), update)
        if damages := _damages(path):
            notes.append(f"{path} is damaged and passed over: {_some(damages)}")
            print(notes[-1], file=sys.stderr)
            continue
        record = _record(path)
        leaves = _leaves(like)
        kinds = {place: _kind(place, leaf) for place, leaf in leaves.items()}
        saved = {place: kind for place, kind in record["leaves"].items() if place in kinds or not partial}
        expected = strictjson.strict(dict(expect))
        differences = [
            *strictjson.differences(_required(record["description"], may_differ), _required(expected, may_differ)),
            *strictjson.differences(saved, kinds),
        ]
        if differences:
            raise UsageError(f"{path} does not belong to this run; saved -> now: {_some(differences)}")
        arrays = _read(path / _STATE)
        restored = [_like(leaf, arrays.get(place), place) for place, leaf in leaves.items()]
        state = jax.tree.unflatten(jax.tree.structure(like), restored)
        return Restored(update, state, tuple(notes))
    if notes:
        raise UsageError(f"no checkpoint is whole: {'; '.join(notes)}")
    return None


def describe(env: Any, *, algorithm: str, seed: int, **settings: Any) -> dict[str, Any]:
    """What a run is, for `hold`: environment, harness, algorithm, seed, settings, versions, switches of JAX.

    Args:
      env: environment, as `ddpomdp.make` gives it.
      algorithm: name of the algorithm.
      seed: seed of the run.
      settings: anything else that a resumed run must agree on, JSON data.

    Raises:
      TypeError: a setting is not JSON data.
    """
    return strictjson.strict(
        {
            "env": env.id,
            "env_version": env.version,
            "harness": env.harness.digest,
            "algorithm": algorithm,
            "seed": seed,
            **settings,
            "versions": {"ddpomdp": __version__, **{package: metadata.version(package) for package in _PACKAGES}},
            "backend": jax.default_backend(),
            "switches": {name: getattr(jax.config, name) for name in _SWITCHES},
        }
    )


def _leaves(state: Any) -> dict[str, Any]:
    """The leaves of `state` by their place in it."""
    return {f"state{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _kind(place: str, leaf: Any) -> str:
    """Dtype and shape of a leaf, as in `float32[3,4]`."""
    if isinstance(leaf, int) and leaf.bit_length() > 63:
        raise ValueError(f"{place}: got {leaf}; allowed: whole numbers of 64 bits")
    if type(leaf) in (bool, int, float):
        return type(leaf).__name__
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise ValueError(f"{place}: got a {type(leaf).__name__}; allowed: arrays and Python numbers")
    if getattr(leaf, "weak_type", False):  # lost in a checkpoint, so arithmetic would go on in another dtype
        raise ValueError(f"{place}: got a weakly typed array; allowed: arrays of a fixed dtype, jnp.array(x, dtype)")
    if not _is_key(leaf) and (leaf.dtype.kind in "OSUMmT" or leaf.dtype.type is np.void or not leaf.dtype.isnative):
        raise ValueError(f"{place}: got dtype {leaf.dtype}; allowed: numbers, truth values and random keys")
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, array: np.ndarray | None, place: str) -> Any:
    """`array` as the kind of thing that `leaf` is, and on its device; one without elements is not in a checkpoint."""
    wanted = _to_numpy(leaf)
    if not wanted.size:
        return leaf
    if array is None or (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
        got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise UsageError(f"{place}: the checkpoint says {wanted.dtype}{list(wanted.shape)} and holds {got}")
    if isinstance(leaf, np.generic):
        return array[()]
    if isinstance(leaf, np.ndarray):
        return array
    if not isinstance(leaf, jax.Array):
        return array.item()
    value = jnp.array(array)
    if _is_key(leaf):
        value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    return jax.device_put(value, leaf.sharding) if leaf.committed else value


def _record(checkpoint: Path) -> dict[str, Any]:
    """What a whole checkpoint says of itself."""
    path = checkpoint / _RECORD
    try:
        record = strictjson.loads(path.read_text("utf-8"))
        if record["format"] != FORMAT:
            raise UsageError(f"{path} has format {record['format']}; this version of ddpomdp reads format {FORMAT}")
        if record["update"] != int(checkpoint.name):
            raise ValueError(f"it is of update {record['update']}")
        if not isinstance(record["description"], dict) or not isinstance(record["leaves"], dict):
            raise TypeError("no description or no leaves")
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not the record of a checkpoint: {_first_line(error)}") from None
    return record


def _read(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a state, as NumPy arrays whatever devices they were on."""
    try:
        with ocp.PyTreeCheckpointer() as orbax:
            places = orbax.metadata(folder.absolute()).item_metadata
            kinds = {place: ocp.RestoreArgs(restore_type=np.ndarray) for place in places}
            return orbax.restore(folder.absolute(), restore_args=kinds)
    except Exception as error:  # whatever Orbax finds amiss in files whose sums are right
        raise UsageError(f"Orbax cannot read {folder}, whose files are whole: {_first_line(error)}") from error


def _required(description: dict[str, Any], may_differ: Sequence[str]) -> dict[str, Any]:
    """The entries of `description` that must agree, by dotted key."""
    free = tuple(f"{key}." for key in may_differ)
    return {key: value for key, value in strictjson.flatten(description).items() if not f"{key}.".startswith(free)}


def _updates(folder: Path) -> list[int]:
    """The updates of all checkpoints of a run, damaged or not, in ascending order."""
    try:
        names = os.listdir(folder / _FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {folder / _FOLDER}: {error.strerror}") from None
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


def _path(folder: Path, update: int) -> Path:
    return folder / _FOLDER / f"{update:010d}"


def _sums(folder: Path) -> bytes:
    """SHA-256 of every file below `folder` but the sums themselves, one a line."""
    lines = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != _SUMS:
            with open(path, "rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines).encode()


def _damages(checkpoint: Path) -> list[str]:
    """What is wrong with the files of a checkpoint; nothing if they are as they were written."""
    try:
        stated, actual = (checkpoint / _SUMS).read_bytes(), _sums(checkpoint)
    except OSError as error:
        return [f"{error.strerror}: {error.filename}"]
    if stated == actual:
        return []
    here = {line[66:]: line for line in actual.decode().splitlines()}
    listed = {line[66:]: line for line in stated.decode(errors="replace").splitlines()}
    missing = [f"{name!r} is missing" for name in listed if name not in here]
    changed = [f"{name!r} does not match {_SUMS}" for name in here if here[name] != listed.get(name)]
    return missing + changed or [f"{_SUMS} is not as it was written"]


def _remove(folder: Path) -> None:
    """Remove a folder of the run under a name that no reader takes for a checkpoint."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.old.tmp")
        if doomed.exists():  # an earlier removal was broken off
            shutil.rmtree(doomed)
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


def _sync(path: Path) -> None:
    """Have the system put a file or folder on the disk; on Windows a no-op."""
    if os.name == "posix":
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
