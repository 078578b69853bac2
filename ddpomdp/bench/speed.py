"""How fast the environments run, beside others: `python -m ddpomdp.bench.speed [CASE ...]`, the verb `make speed`.

Each case (`ddpomdp.bench.cases`) is a process of its own, so that compile time and peak memory are its own. First all
compile, one after the other; then they take turns, one call each a round, so that a busy machine hits all alike.
Stated are medians over the rounds; CPU-seconds are those of all threads of the process. Ratios are between medians of
one run. Cases of libraries that are not installed are left out, with a line that says so.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

ROUNDS = 5
NEEDS = {"spread-64": "jaxmarl", "spread-1024": "jaxmarl", "smax-1024": "jaxmarl", "spread-python": "mpe2"}
# What is compared with what: (case, with which, figure, at least or at most so many times).
COMPARED = (
    ("small-1024", "spread-1024", "turns_per_cpu_s", ">=", 1.5),
    ("small-1024", "smax-1024", "turns_per_cpu_s", ">=", 4.0),
    ("small-1024-random", "spread-1024", "turns_per_cpu_s", ">=", 1.0),
    ("small-64", "spread-64", "turns_per_cpu_s", ">=", 1.0),
    ("math-1024", "small-1024", "turns_per_cpu_s", ">=", 1.0),
    ("datascience-1024", "small-1024", "turns_per_cpu_s", ">=", 1.0),
    ("slots-16", "slots-300", "turns_per_cpu_s", "<=", 1.1),
    ("slots-300", "slots-600", "turns_per_cpu_s", "<=", 1.1),
    ("small-1024", "spread-1024", "compile_s", "<=", 4.0),
    ("reset-1024", "no-reset-1024", "cpu_s", "<=", 1.1),
    ("branches-1024", "episodes-1024", "cpu_s", "<=", 1.2),
)
# What is asked of a case alone.
BARS = (
    ("stress", "wall_s", 1.5),
    ("stress", "cpu_s", 2.0),
    ("k2.6", "wall_s", 0.5),
    ("small-1024", "peak_mb", 1_000),
    ("gymnasium", "above_ms", 0.25),
)


def serve(name: str) -> int:
    """A worker: compile, say so, then one call for each line on standard input; all answers are JSON lines."""
    import jax

    from ddpomdp.bench.cases import CASES

    case = CASES[name]
    began = time.perf_counter()
    run: Any = case.build()
    if case.compiled:
        run = jax.jit(run).lower(jax.random.key(0)).compile()
    compile_s = time.perf_counter() - began
    jax.block_until_ready(run(jax.random.key(0)))
    _say(about=case.about, compile_s=compile_s, device=jax.devices()[0].device_kind, jax=jax.__version__)
    for call, _ in enumerate(sys.stdin, 1):
        wall, cpu = time.perf_counter(), _cpu_s()
        out = jax.block_until_ready(run(jax.random.key(call)))
        wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
        turns = int(out["turns"])
        more: dict[str, Any] = {key: float(out[key]) for key in ("above_ms", "step_ms") if key in out}
        if "decisions" in out:
            more |= {"decisions": int(out["decisions"]) / turns, "ends": int(out["ends"]), "alive": turns / case.slots}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        more |= {"turns_per_s": turns / wall, "turns_per_cpu_s": turns / cpu, "peak_mb": peak}
        _say(turns=turns, wall_s=wall, cpu_s=cpu, **more)
    return 0


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _cpu_s() -> float:
    """CPU-seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Worker:
    """A process that measures one case."""

    def __init__(self, name: str):
        """Start it and wait until it has compiled."""
        command = [sys.executable, "-m", "ddpomdp.bench.speed", name, "--serve"]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.head = self._answer()
        self.calls: list[dict[str, Any]] = []

    def call(self) -> None:
        """One timed call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.calls.append(self._answer())

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()

    def medians(self) -> dict[str, Any]:
        """The case's figures."""
        figures = {key: statistics.median(call[key] for call in self.calls) for key in self.calls[0]}
        return {"case": self.name, **self.head, **figures}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name}: the process ended with status {self.process.wait()}")


def main(args: Sequence[str] | None = None) -> int:
    """Measure the cases named and print tables."""
    from ddpomdp.bench.cases import CASES

    parser = argparse.ArgumentParser(prog="python -m ddpomdp.bench.speed", description="Turns per second.")
    parser.add_argument("case", nargs="*", help=f"{', '.join(CASES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed calls of each case; medians are stated")
    parser.add_argument("--json", action="store_true", help="print one JSON object per case")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    unknown = [name for name in given.case if name not in CASES]
    if unknown or given.rounds < 1:
        parser.error(f"unknown case {unknown[0]!r} (allowed: {', '.join(CASES)})" if unknown else "--rounds from 1")
    if given.serve:
        return serve(given.case[0])
    workers = []
    for name in given.case or CASES:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{name}: left out, {NEEDS[name]} is not installed (dependency group `peers`)", file=sys.stderr)
            continue
        workers.append(Worker(name))
    loads = [os.getloadavg()[0]]
    for _ in range(given.rounds):
        for worker in workers:
            worker.call()
        loads.append(os.getloadavg()[0])
    results = {worker.name: worker.medians() for worker in workers}
    for worker in workers:
        worker.stop()
    if given.json:
        for result in results.values():
            print(json.dumps(result))
        return 0
    print(
        f"load average {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} cores, medians of {given.rounds} rounds"
    )
    print("\n".join(table(results)))
    print("\n".join(compared(results)))
    return 0


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown row per case."""
    lines = [
        "| case | turns per CPU-second | per second | call: wall, CPU s | alive | decisions | compile s | peak MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in results.items():
        alive, decisions = (f"{r[key]:.1%}" if key in r else "" for key in ("alive", "decisions"))
        lines.append(
            f"| {name}: {r['about']} | {r['turns_per_cpu_s']:,.0f} | {r['turns_per_s']:,.0f} | {r['wall_s']:.2f}, "
            f"{r['cpu_s']:.2f} | {alive} | {decisions} | {r['compile_s']:.1f} | {r['peak_mb']:,.0f} |"
        )
    return lines


def compared(results: dict[str, dict[str, Any]]) -> list[str]:
    """A line per comparison that can be made."""
    lines = []
    for name, other, figure, sign, bar in COMPARED:
        if name in results and other in results:
            ratio = results[name][figure] / results[other][figure]
            lines.append(_line(f"{figure} of {name} to {other}", ratio, sign, bar))
    for name, figure, bar in BARS:
        if name in results:
            lines.append(_line(f"{figure} of {name}", results[name][figure], "<=", bar))
    return lines


def _line(what: str, value: float, sign: str, bar: float) -> str:
    meets = value >= bar if sign == ">=" else value <= bar
    return f"{what}: {value:.2f} ({'meets' if meets else 'misses'} {sign} {bar:g})"


if __name__ == "__main__":
    sys.exit(main())
