"""An accelerator beside the CPU of its machine: `python -m ddpomdp_baselines.accelerator`.

First the same episodes are played on both, and every whole number of every event is compared: an episode is equal if
all of them are, and of the others it is said in which field they first part. Then turns of living agents per second, at
several batch sizes, and one training update.

On a machine without an accelerator it says what is missing; `--anyway` runs it there, the CPU beside itself.
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ddpomdp
from ddpomdp.bench.cases import Unstopping, ours
from ddpomdp.env import Env
from ddpomdp.policies import Policy
from ddpomdp.rollouts import episodes
from ddpomdp.timestep import TimeStep
from ddpomdp_baselines import algorithms
from ddpomdp_baselines.learner import Sizes, Update, start
from ddpomdp_baselines.shipped import base
from ddpomdp_baselines.train import made

COMMAND = "python -m ddpomdp_baselines.accelerator"
EPISODES = 512
TIMED = (  # preset, ticks, searchers, batch sizes
    ("small", 64, 15, (1_024, 8_192, 65_536)),
    ("k2.5", 64, 100, (64, 512, 4_096)),
    ("k2.6", 64, 300, (16, 128, 1_024)),
    ("stress", 64, 299, (16, 128, 1_024)),
)


def digests(env: Env, policy: Policy, count: int, num_ticks: int) -> dict[str, np.ndarray]:
    """uint32[T,B] per field of `Event` that holds no floats: a hash of the field's numbers in that tick.

    The hash is a sum of the numbers, each times an odd number of its place, so that the order of the sum is free.
    """

    def record(ts: TimeStep, turns: jax.Array, aux: Any, next_ts: TimeStep) -> dict[str, jax.Array]:
        fields = {name: value for name, value in vars(next_ts.events).items() if name != "channels"}
        return {name: jax.vmap(_hash)(value) for name, value in fields.items()}

    keys = jax.random.split(jax.random.key(0), count)
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    play = jax.jit(
        lambda params: episodes(env, policy, params, keys, luck, num_ticks, env.params, record).recorded  # [T,B]
    )
    return {name: np.asarray(value) for name, value in play(policy.init(env)).items()}


def _hash(x: jax.Array) -> jax.Array:
    words = x.astype(jnp.uint32).reshape(-1)
    weights = (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1) * jnp.uint32(0x9E3779B1)
    return jnp.sum((words + jnp.uint32(1)) * weights, dtype=jnp.uint32)


def parted(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> tuple[float, collections.Counter[str]]:
    """(share of equal episodes, how many of the others first part in which fields)."""
    names = sorted(one)
    differs = np.stack([one[name] != other[name] for name in names])  # [F,T,B]
    ever = differs.any(axis=(0, 1))
    first = differs.any(axis=0).argmax(axis=0)
    why = [" ".join(names[f] for f in np.flatnonzero(differs[:, first[b], b])) for b in np.flatnonzero(ever)]
    return float(1 - ever.mean()), collections.Counter(why)


def compared(count: int, num_ticks: int | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Digests under a scripted swarm and under random turns."""
    env = ddpomdp.make("Search-v0", preset="small")
    policies = {"swarm of 12": ddpomdp.policy("swarm", env, n=12), "random turns": Unstopping(env)}
    return {name: digests(env, policy, count, num_ticks or env.spec.max_ticks) for name, policy in policies.items()}


def on_the_cpu(count: int) -> dict[str, dict[str, np.ndarray]]:
    """The digests of a process that has the CPU only."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digests.npz"
        words = [sys.executable, "-m", "ddpomdp_baselines.accelerator", "--reference", str(file)]
        subprocess.run([*words, "--episodes", str(count)], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        found: dict[str, dict[str, np.ndarray]] = {}
        with np.load(file) as stored:
            for name in stored.files:
                policy, field = name.split("/")
                found.setdefault(policy, {})[field] = stored[name]
        return found


def seconds(call: Callable[[int], Any], calls: int = 3) -> float:
    """Median wall-clock of call(1), call(2), ... after call(0) has compiled."""
    jax.block_until_ready(call(0))
    spent = []
    for index in range(1, calls + 1):
        began = time.perf_counter()
        jax.block_until_ready(call(index))
        spent.append(time.perf_counter() - began)
    return float(np.median(spent))


def time_steps() -> None:
    """Print turns per second; a batch that does not fit ends its preset's row."""
    for preset, ticks, searchers, batches in TIMED:
        for batch in batches:
            run = jax.jit(ours(batch, ticks, searchers, preset).build())
            try:
                spent = seconds(lambda i, run=run: run(jax.random.key(i)))
                turns = int(run(jax.random.key(3))["turns"])
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                print(f"  {preset}, batch {batch:,}: does not fit", flush=True)
                break
            print(f"  {preset}, batch {batch:,}: {turns / spent:,.0f} turns per second", flush=True)


def time_update() -> None:
    """Print what an update takes."""
    env = made("Search-v0", {})
    policy, sizes = base(env), Sizes(groups=64, num_ticks=env.spec.max_ticks)
    update = jax.jit(Update(env, policy.network, algorithms.find("dr_mas"), sizes, env.spec.roles))
    learner = start(policy.params, sizes)
    spent = seconds(lambda i: update(learner, jax.random.key(i), policy.params, env.params))
    print(f"  an update of dr_mas, 64 groups of 8 episodes, Search-v0 small: {spent:.2f} s")


def main(words: Sequence[str] | None = None) -> int:
    """Print the readings."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--anyway", action="store_true", help="run without an accelerator too")
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.episodes < 1:
        parser.error(f"--episodes: got {given.episodes}, must be at least 1")
    if given.reference is not None:
        found = compared(given.episodes)
        flat: dict[str, Any] = {f"{name}/{field}": x for name in found for field, x in found[name].items()}
        np.savez(given.reference, **flat)
        return 0
    device = jax.devices()[0]
    if device.platform == "cpu" and not given.anyway:
        print("JAX sees no accelerator. On a machine with a GPU or TPU:", file=sys.stderr)
        print('  pip install "jax[cuda12]"  (or "jax[tpu]") beside this package, then', COMMAND, file=sys.stderr)
        return 2
    print(f"{device.device_kind}, JAX {jax.__version__}, ddpomdp {ddpomdp.__version__}", flush=True)
    reference = on_the_cpu(given.episodes)
    for name, found in compared(given.episodes).items():
        share, why = parted(reference[name], found)
        print(f"  {name}: {share:.2%} of {given.episodes} episodes equal in every whole number", flush=True)
        for fields, times in why.most_common():
            print(f"    {times} first part in: {fields}", flush=True)
    time_steps()
    time_update()
    return 0


if __name__ == "__main__":
    sys.exit(main())
