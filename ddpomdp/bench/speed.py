"""How fast an environment runs: `python -m ddpomdp.bench.speed [CASE ...]`, the verb `make speed`.

Counted are turns of living agents in running episodes: the root that acts or waits for its children counts, an empty
slot and a finished episode do not. The team is a scripted swarm that hands its rows out again and again, episodes
restart in the tick they end, and every number that a step gives is summed, so that the compiler can leave out
nothing. Each case is a process of its own, so that compile time and peak memory are its own; the median of five
calls is stated. CPU-seconds are those of all threads.

Axis letters: B episode, T tick, N slot.
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CALLS = 5


@dataclass(frozen=True)
class Case:
    """One measurement."""

    preset: str
    batch: int
    ticks: int
    swarm: int  # searchers per episode


CASES = {
    "small-64": Case("small", batch=64, ticks=256, swarm=15),
    "small-1024": Case("small", batch=1_024, ticks=64, swarm=15),
    "stress": Case("stress", batch=1, ticks=4_000, swarm=299),
}


def measure(name: str, calls: int = CALLS) -> dict[str, Any]:
    """Measure one case in this process."""
    import jax
    import jax.numpy as jnp

    import ddpomdp
    from ddpomdp import wrappers
    from ddpomdp.rollouts import renewed

    case = CASES[name]
    env = ddpomdp.make("Search-v0", preset=case.preset)
    policy = ddpomdp.policy("swarm", env, n=case.swarm, redundancy=1_000)
    params, vector = policy.init(env), wrappers.auto_reset(env, case.batch)
    fresh = jax.tree.map(lambda x: jnp.broadcast_to(x, (case.batch, *x.shape)), policy.carry(env))

    @jax.jit
    def run(key: jax.Array) -> dict[str, jax.Array]:
        running, ts = vector.reset(key)

        def tick(carry: tuple, _: None) -> tuple[tuple, None]:
            running, ts, memory, total, counts = carry
            noise = jax.vmap(lambda luck: jax.random.fold_in(luck, 2))(running.luck)
            turns, memory, _ = jax.vmap(lambda *x: policy.act(params, *x))(noise, memory, ts)
            running, next_ts, final = vector.step(running, turns)
            # After an episode's end the root is a new life, whose memory begins afresh.
            memory = jax.vmap(lambda m, a, b: renewed(env, policy, m, a, b))(memory, ts, next_ts)
            memory = jax.tree.map(lambda f, m: jnp.where(_as(final.last, m), f, m), fresh, memory)
            out = dataclasses.replace(final, observation=next_ts.observation, legal=next_ts.legal)
            total = total + sum(jnp.sum(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(out))
            counts = counts + jnp.stack(
                [
                    jnp.sum(ts.alive, dtype=jnp.int32),
                    jnp.sum(final.events.is_decision, dtype=jnp.int32),
                    jnp.sum(final.last, dtype=jnp.int32),
                ]
            )
            return (running, next_ts, memory, total, counts), None

        start = (running, ts, fresh, jnp.float32(0), jnp.zeros(3, jnp.int32))
        (_, _, _, total, counts), _ = jax.lax.scan(tick, start, length=case.ticks)
        return {"total": total, "turns": counts[0], "decisions": counts[1], "ends": counts[2]}

    began = time.perf_counter()
    compiled = run.lower(jax.random.key(0)).compile()
    compile_s = time.perf_counter() - began
    walls, cpus, out = [], [], {}
    for call in range(calls):
        wall, cpu = time.perf_counter(), _cpu_s()
        out = jax.block_until_ready(compiled(jax.random.key(call)))
        walls.append(time.perf_counter() - wall)
        cpus.append(_cpu_s() - cpu)
    turns, wall_s, cpu_s = int(out["turns"]), statistics.median(walls), statistics.median(cpus)
    return {
        "case": name,
        "turns": turns,
        "turns_per_cpu_s": turns / cpu_s,
        "turns_per_s": turns / wall_s,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "alive": turns / (case.batch * case.ticks * env.spec.capacity),
        "decisions": int(out["decisions"]) / turns,
        "episodes_ended": int(out["ends"]),
        "compile_s": compile_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
        "load": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
    }


def _as(flags: Any, like: Any) -> Any:
    """Flags [B] in the rank of an array [B, ...]."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def _cpu_s() -> float:
    """CPU-seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(args: Sequence[str] | None = None) -> int:
    """Measure the cases named, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m ddpomdp.bench.speed", description="Turns per second.")
    parser.add_argument("case", nargs="*", help=f"{', '.join(CASES)}; all if none is named")
    parser.add_argument("--calls", type=int, default=CALLS, help="timed calls; the median is stated")
    parser.add_argument("--json", action="store_true", help="print one JSON object per case")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    unknown = [name for name in given.case if name not in CASES]
    if unknown or given.calls < 1:
        parser.error(f"unknown case {unknown[0]!r} (allowed: {', '.join(CASES)})" if unknown else "--calls from 1")
    if given.here:
        print(json.dumps(measure(given.case[0], given.calls)))
        return 0
    for name in given.case or CASES:
        command = [sys.executable, "-m", "ddpomdp.bench.speed", name, "--here", "--calls", str(given.calls)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return done.returncode
        result = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(result) if given.json else _lines(result), flush=True)
    return 0


def _lines(result: dict[str, Any]) -> str:
    case = CASES[result["case"]]
    episode = " (one episode)" if case.batch == 1 else ""
    return "\n".join(
        (
            f"{result['case']}: Search-v0 {case.preset}, batch {case.batch}, {case.ticks} ticks, swarm of {case.swarm}",
            f"  turns of live agents   {result['turns_per_cpu_s']:12,.0f} per CPU-second",
            f"                         {result['turns_per_s']:12,.0f} per second",
            f"  a call{episode:<17}{result['wall_s']:12,.2f} s wall, {result['cpu_s']:,.2f} CPU-seconds",
            f"  team alive             {result['alive']:12.1%}   turns that are decisions {result['decisions']:.1%}",
            f"  compile                {result['compile_s']:12,.1f} s     peak memory {result['peak_mb']:,.0f} MB",
            f"  episodes ended {result['episodes_ended']}, load average {result['load']:.2f}, {result['device']}",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
