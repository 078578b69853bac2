"""Suites and commands of an invented package, found through its entry points when this folder is on the path."""

import math
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from ddpomdp.bench import QUALITY, TOKENS, Cell, Curve, Output, Picture, Section, Suite, Table
from ddpomdp.options import UsageError

POLICIES = {"random": 0.2, "heuristic": 0.4, "learned": 0.6}


def cells(options):
    for policy in POLICIES:
        for seed in options["seeds"]:
            settings = {
                "env": "Fake-v0",
                "policy": policy,
                "episodes": options["episodes"],
                "sleep_s": options["sleep_s"],
            }
            yield Cell(
                f"Fake-v0.{policy}.s{seed}", seed, settings, {"env version": os.environ.get("FAKE_VERSION", "0")}
            )
    yield Cell("train.s0", 0, {"algorithm": "grpo"})


def run(cell):
    rng = random.Random(cell.id)
    if "algorithm" in cell.settings:
        return [{"update": update, "return": 0.1 * update} for update in range(5)]
    time.sleep(cell.settings["sleep_s"])
    skill = POLICIES[cell.settings["policy"]] + rng.gauss(0, 0.02)
    rows = [
        {"quality": skill + rng.gauss(0, 0.1), "tokens": rng.randrange(10**12)}
        for _ in range(cell.settings["episodes"])
    ]
    if cell.seed == 0 and cell.settings["policy"] == "random":
        rows[0]["quality"] = math.nan
        rows[1]["extra"] = {"worst": [math.inf, -math.inf]}
    pictures = (Picture("Trace", "<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),)
    return Output(rows, pictures if cell.seed == 0 else ())


def analyse(rows):
    return {"last_return": max(row["return"] for row in rows if "return" in row), "episodes": len(rows)}


def sections(rows, results):
    points = [(row["update"], row["return"]) for row in rows if "return" in row]
    table = Table(("what", "value"), (("<i>last</i>", results["analysis"]["last_return"]),))
    yield Section("Training", "It rises.", (table,), (Curve("Return", "update", "return", {"grpo": points}),))


def fake():
    return Suite(
        name="fake",
        description="Three policies <b>and</b> a training run.",
        cells=cells,
        run=run,
        options={"seeds": [0, 1, 2], "episodes": 4, "sleep_s": 0.0},
        metrics=(QUALITY, TOKENS),
        analyse=analyse,
        sections=sections,
    )


def broken_cells(options):
    return [Cell(f"c{n}", n, {"env": "Fake-v0", "policy": "random"}) for n in range(6)]


def broken_run(cell):
    """Cells 1 and 4 fail while the folder that FAKE_BROKEN names lacks a file; cell 2's worker dies once."""
    state = Path(os.environ["FAKE_BROKEN"])
    (state / f"ran-{cell.id}-{time.time_ns()}").touch()
    if cell.seed in (1, 4) and not (state / "mended").exists():
        raise RuntimeError(f"cell {cell.seed} \x1b[31mfails\n<script>")
    if cell.seed == 2 and (state / "killers").exists():
        (state / "killers").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.seed == 3 and (state / "always").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"quality": 0.5, "tokens": 1}]


def broken():
    return Suite("broken", "", broken_cells, broken_run, metrics=(QUALITY, TOKENS))


def local():
    return Suite("local", "", broken_cells, lambda cell: [{}], metrics=(QUALITY,))


def notsuite():
    return 3


@dataclass(frozen=True)
class Greet:
    """Greet somebody."""

    name: str = "you"
    """Whom."""

    def __call__(self, options):
        """Greet."""
        if self.name == "nobody":
            raise UsageError("got 'nobody';\nallowed: \x1b[31manybody")
        if self.name == "crash":
            raise RuntimeError("a bug\nin two lines")
        print(f"hello {self.name} {options}")
        return 0


TOOLS = {"greet": Greet}
