"""The picture of runs of the suite `diffusion`: rho against size, each structure from the first run that has it.

python -m ddpomdp_envs.diffusion_picture results/diffusion results/diffusion-small docs/img/diffusion.png
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpomdp_envs.diffusion_suite import ESTIMATORS, resolved

LABELS = {"trace": "calls of the task's tools in an episode", "team": "workers, same work in all"}
COLOURS = dict(zip(ESTIMATORS, ("#1f5fa8", "#d1730c", "#2a8a57", "#7b4aa8"), strict=True))
MARKS = dict(zip(ESTIMATORS, "osD^", strict=True))
STRUCTURES = ("additive", "additive, deeper subtasks", "additive, irrelevant decisions", "additive, wider team")
STRUCTURES = (*STRUCTURES, "majority", "chain")


def draw(series: Sequence[dict[str, Any]], structures: Sequence[str] | None = None, columns: int = 3) -> Any:
    """A matplotlib figure of series as `diffusion_suite.analyse` gives them.

    Both axes are logarithmic, and all panels have one y axis; bars are 95% intervals, dashes the closed form of the
    shared outcome. Sizes that are not resolved are left out.

    Args:
      series: of the suite's analysis.
      structures: panels, in this order; None: all there are.
      columns: panels in a row at most.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    names = list(dict.fromkeys(line["structure"] for line in series)) if structures is None else list(structures)
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.6, 2.6 * rows + (0.5 if columns > 2 else 0.8)), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    shown: dict[str, Any] = {}
    for axis, name in zip(axes.flat, names, strict=False):
        mine = [line for line in series if line["structure"] == name]
        for line in mine:
            points = [p for p in line["points"] if resolved(p)]
            if not points:
                continue
            x, rho = [p["x"] for p in points], [p["rho"] for p in points]
            below = [max(p["rho"] - p["rho_low"], 0) for p in points]
            above = [max(p["rho_high"] - p["rho"], 0) for p in points]
            which = line["estimator"]
            style = {"color": COLOURS[which], "marker": MARKS[which], "markersize": 4, "linewidth": 1.4}
            shown[which] = axis.errorbar(x, rho, [below, above], capsize=2, elinewidth=0.8, **style)
        exact = [(p["x"], p["exact_rho"]) for p in mine[0]["points"] if p["exact_rho"]]
        if exact:
            (shown["shared, exact"],) = axis.plot(*zip(*exact, strict=True), "--", color="#555555", linewidth=1)
        axis.set(title=name, xscale="log", yscale="log", xlabel=LABELS[mine[0]["grows"]])
        axis.title.set_size(10)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_locator(FixedLocator(sorted({p["x"] for line in mine for p in line["points"]})))
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        for place in (axis.xaxis, axis.yaxis):
            place.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            place.set_minor_formatter(NullFormatter())
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for row in axes:
        row[0].set_ylabel("rho: credit against true advantage")
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=min(5, 2 * columns), frameon=False)
    return figure


def main() -> None:
    """Draw the results of runs into a file."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    arguments.add_argument("out", type=Path, help="image to write")
    given = arguments.parse_args()
    results = [json.loads((run / "results.json").read_text("utf-8")) for run in given.runs]
    series: list[dict[str, Any]] = []
    for each in results:
        there = {line["structure"] for line in series}
        series += [line for line in each["analysis"]["series"] if line["structure"] not in there]
    there = {line["structure"] for line in series}
    draw(series, [name for name in STRUCTURES if name in there]).savefig(given.out, dpi=110)


if __name__ == "__main__":
    main()
