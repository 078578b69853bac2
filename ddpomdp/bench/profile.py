"""Where the time of a case goes: `python -m ddpomdp.bench.profile [CASE]`, move by move of the engine.

One call under JAX's profiler; each kernel's time is booked on the outermost named move its instructions come from
(`ddpomdp.pytree.once` names them). Kernels run side by side on several cores, so the sum exceeds the wall-clock.
Beside it: what the compiler says of the program (`cost_analysis`).
"""

import argparse
import collections
import glob
import re
import sys
import tempfile
from collections.abc import Sequence

import jax
from jax.profiler import ProfileData

from ddpomdp.bench.cases import CASES

# What is timed but is no kernel of its own.
_OUTER = re.compile(r"^(ThunkExecutor|\$|while|call|conditional|jit_|vmap_|end:)")


def profile(name: str) -> tuple[dict[str, float], dict[str, int], dict[str, float]]:
    """(milliseconds by move, kernels by move, cost analysis) of one call."""
    compiled = jax.jit(CASES[name].build()).lower(jax.random.key(0)).compile()
    text = compiled.as_text() or ""
    origin = dict(re.findall(r'%([\w.\-]+) = .*?op_name="([^"]*)"', text))
    jax.block_until_ready(compiled(jax.random.key(1)))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(jax.random.key(2)))
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        times, counts = collections.Counter(), collections.Counter()
        for plane in ProfileData.from_file(file).planes:
            for line in plane.lines:
                for event in line.events:
                    if not _OUTER.match(event.name):
                        move = _move(event.name, origin)
                        times[move] += event.duration_ns / 1e6
                        counts[move] += 1
    return dict(times), dict(counts), compiled.cost_analysis() or {}


def _move(kernel: str, origin: dict[str, str]) -> str:
    if kernel.startswith("copy"):
        return "copies"
    moves = [m for m in re.findall(r"(?:jit|vmap)\(([A-Za-z_][\w.<>]*)\)", origin.get(kernel, "")) if m != "_where"]
    return next((m for m in moves if m != "run"), "policy, restart, population, sums")


def main(args: Sequence[str] | None = None) -> int:
    """Print the table of a case."""
    parser = argparse.ArgumentParser(prog="python -m ddpomdp.bench.profile", description="Time by move.")
    names = [name for name, case in CASES.items() if case.compiled]
    parser.add_argument("case", nargs="?", default="small-1024", choices=names)
    name = parser.parse_args(args).case
    times, counts, cost = profile(name)
    total = sum(times.values())
    print(f"{CASES[name].about}, {jax.devices()[0].device_kind}, JAX {jax.__version__}\n")
    print("| move | share | kernels run |\n| --- | --- | --- |")
    for move, spent in sorted(times.items(), key=lambda item: -item[1]):
        if spent > total / 200:
            print(f"| {move} | {spent / total:.1%} | {counts[move]:,} |")
    flops, moved = (cost.get(key, 0.0) for key in ("flops", "bytes accessed"))
    print(f"\nkernels {total:,.0f} ms; the compiler counts {flops:,.0f} operations and {moved:,.0f} bytes moved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
