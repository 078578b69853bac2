"""Decisions learned from per CPU-second, what they are spent on, and the memory of a large run.

    python -m ddpomdp_baselines.speed [--calls 5] [--only small|stress] [--cores 1]

small: `dr_mas` on Search-v0 small, 8 groups of 8, from the base policy: episodes and one update. Forced turns are no
decisions. Shares: the environment is what the same number of episodes takes under the base policy's scripted teacher;
the policy is what acting with the network adds; the update is the rest.

On several cores the short kernels of a small batch wait for each other, and CPU-seconds are spent waiting; `--cores 1`
leaves that out.

stress: two updates on 100 agents x 1,500 ticks, one group of 4, in a process of its own; peak memory of the process.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ddpomdp_baselines import algorithms
from ddpomdp_baselines.experience import collect, group_keys
from ddpomdp_baselines.learner import Sizes, Update, start
from ddpomdp_baselines.network import Network
from ddpomdp_baselines.shipped import base
from ddpomdp_baselines.teachers import TEACHERS
from ddpomdp_baselines.train import made


def timed(call: Callable[[int], Any], calls: int) -> tuple[list[float], list[Any]]:
    """(CPU-seconds, results) of call(1), call(2), ... after call(0) has compiled."""
    jax.block_until_ready(call(0))
    seconds, results = [], []
    for index in range(1, calls + 1):
        began = time.process_time()
        results.append(jax.block_until_ready(call(index)))
        seconds.append(time.process_time() - began)
    return seconds, results


def small(calls: int) -> None:
    """Print decisions per CPU-second and the shares."""
    env = made("Search-v0", {})
    policy, sizes = base(env), Sizes(num_ticks=env.spec.max_ticks)
    update = Update(env, policy.network, algorithms.find("dr_mas"), sizes, env.spec.roles)
    learner = start(policy.params, sizes)
    taught = TEACHERS[env.id].on(env)
    scripts = taught.init(env)

    def scripted(params: Any, key: jax.Array) -> Any:
        keys, luck, group = group_keys(key, sizes.groups, sizes.group_size)
        return collect(env, taught, params, keys, luck, group, sizes.num_ticks, env.params)

    key = jax.random.key(0)
    of = lambda index: jax.random.fold_in(key, index)  # noqa: E731
    programs = jax.jit(scripted), jax.jit(update.play), jax.jit(update)
    environment, _ = timed(lambda i: programs[0](scripts, of(i)), calls)
    playing, _ = timed(lambda i: programs[1](learner, of(i), env.params), calls)
    whole, results = timed(lambda i: programs[2](learner, of(i), policy.params, env.params), calls)
    decisions = [float(metrics["decisions"] * metrics["episodes"]) for _, metrics in results]
    rate = statistics.median(count / seconds for count, seconds in zip(decisions, whole, strict=True))
    a, b, c = (statistics.median(seconds) for seconds in (environment, playing, whole))
    print(f"small: {rate:,.0f} decisions per CPU-second, {np.mean(decisions):,.0f} decisions in {c:.2f} CPU-seconds")
    print(f"  environment {a / c:.0%}, policy {max(b - a, 0) / c:.0%}, update {max(c - b, 0) / c:.0%}")


def stress() -> None:
    """Two updates on a hundred agents; print time and peak memory."""
    options = {"preset": "stress", "capacity": 100, "max_ticks": 1_500}
    env = made("Search-v0", options)
    network, sizes = Network(env), Sizes(groups=1, group_size=4, num_ticks=1_500)
    update = Update(env, network, algorithms.find("dr_mas"), sizes, env.spec.roles)
    fresh = network.init(env)
    # A fresh policy stops at once: one that seldom does fills the team and the ticks.
    params = fresh | {"bias": fresh["bias"].at[0, env.harness.tool("stop")].add(-20.0)}
    learner, step = start(params, sizes), jax.jit(update)
    learner, _ = step(learner, jax.random.key(0), params, env.params)
    learner, metrics = step(learner, jax.random.key(0), params, env.params)
    decisions = float(metrics["decisions"] * metrics["episodes"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    born, ticks = float(metrics["births"]), float(metrics["ticks"])
    print(f"stress: two updates, {decisions:,.0f} decisions in the second, {born:.0f} born, {ticks:,.0f} ticks")
    print(f"  peak memory {peak:.2f} GiB, {time.process_time():.0f} CPU-seconds with compiling")


def main(words: Sequence[str] | None = None) -> int:
    """Print the readings."""
    parser = argparse.ArgumentParser(prog="python -m ddpomdp_baselines.speed", description=__doc__)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--only", choices=("small", "stress"))
    parser.add_argument("--cores", type=int, help="use the first so many of the process's cores (Linux)")
    given = parser.parse_args(words)
    if given.cores is not None:
        allowed = sorted(os.sched_getaffinity(0))
        if not 1 <= given.cores <= len(allowed):
            parser.error(f"--cores: got {given.cores}, allowed: 1 to {len(allowed)}")
        os.sched_setaffinity(0, allowed[: given.cores])
    print(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores, JAX {jax.__version__}", flush=True)
    if given.only == "stress":
        stress()
        return 0
    small(given.calls)
    if given.only is None:
        # A child keeps its parent's cores.
        return subprocess.run([sys.executable, "-m", "ddpomdp_baselines.speed", "--only", "stress"]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
