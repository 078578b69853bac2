"""report.html: one file without outside parts, rebuilt from the raw rows at any time. Needs the extra `plot`."""

import base64
import io
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpomdp.bench import results, strictjson
from ddpomdp.bench.store import Store
from ddpomdp.bench.suite import Curve, Metric, Suite
from ddpomdp.options import UsageError

FILE = "report.html"
FEW = 12  # points of a line that are marked one by one
_COLOURS = {  # by theme: text, grid, lines (Okabe and Ito's palette, its dark tones lifted for dark paper)
    "light": ("#4b5563", "#e5e7eb", ("#0f6fbf", "#d55e00", "#00875f", "#b0588e", "#946f00", "#3a96c8", "#6b7280")),
    "dark": ("#a8b1bf", "#2c3441", ("#63b3f4", "#f0965a", "#3cc9a0", "#dd93bf", "#e3b341", "#8fd0f0", "#9aa4b2")),
}


def write(store: Store, suite: Suite, numbers: Mapping[str, Any]) -> Path:
    """Write report.html of a run whose results.json holds `numbers`; without the extra `plot`: `UsageError`."""
    try:
        import jinja2
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"the report needs {error.name}: pip install 'ddpomdp[plot]'") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ddpomdp.bench", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "mean_and_half": mean_and_half, "image": image, "chart": chart}
    rows = [row for cell in numbers["cells"] for row in store.rows(cell)]
    page = environment.get_template("report.html.jinja").render(
        run=store.run,
        numbers=numbers,
        metrics=suite.metrics,
        headline=headline(numbers["table"], suite.metrics, suite.group_by),
        seeds=len({row["seed"] for row in rows}),
        episodes=len(rows),
        sections=list(suite.sections(rows, dict(numbers))) if rows else [],
        pictures=store.pictures(),
        provenance=_provenance(store.run["cells"]),
        seconds=sum(start.get("seconds") or 0 for start in store.run["starts"]),
        devices=sorted({start["device"] for start in store.run["starts"] if start.get("device")}),
    )
    path = store.folder / FILE
    strictjson.write_atomic(path, page)
    return path


def write_if_possible(store: Store, suite: Suite, numbers: Mapping[str, Any]) -> None:
    """`write`, or one line on standard error why there is no report; the results stand without it."""
    try:
        write(store, suite, numbers)
    except UsageError as error:
        print(error, file=sys.stderr)


def rebuild(store: Store, suite: Suite) -> Path:
    """Recompute results.json and report.html from the raw rows."""
    return write(store, suite, results.write(store, suite))


def number(value: float | None) -> str:
    """`value` to three digits, integers in full below 10,000; above, in k, M or G."""
    if value is None:
        return "–"
    scale, suffix = _scale(value)
    exact = not suffix and value == int(value)
    return _fixed(value / scale, 0 if exact else 2 - _magnitude(value / scale)) + suffix


def mean_and_half(summary: Mapping[str, Any]) -> tuple[str, str]:
    """A summary's mean and half-interval, both to the half-interval's second digit; no half if there is none."""
    if summary["low"] is None:
        return number(summary["mean"]), ""
    mean, half = summary["mean"], (summary["high"] - summary["low"]) / 2
    scale, suffix = _scale(max(abs(mean), half))
    digits = 1 - _magnitude(half / scale)
    return _fixed(mean / scale, digits) + suffix, _fixed(half / scale, digits) + suffix


def _scale(value: float) -> tuple[float, str]:
    size = abs(value)
    return (1e9, "G") if size >= 1e9 else (1e6, "M") if size >= 1e6 else (1e3, "k") if size >= 1e4 else (1.0, "")


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _fixed(value: float, digits: int) -> str:
    return f"{value:,.{min(max(digits, 0), 4)}f}".replace("-", "−")


def image(data: bytes | str) -> str:
    """A data address for PNG bytes or SVG text; scripts inside an image do not run."""
    kind, raw = ("png", data) if isinstance(data, bytes) else ("svg+xml", data.encode())
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def chart(curve: Curve) -> dict[str, str]:
    """`curve` drawn for light and for dark paper: {"light": address, "dark": address}."""
    lines = {name: [tuple(point) for point in points] for name, points in curve.lines.items()}
    return {theme: image(_draw(curve, lines, theme)) for theme in _COLOURS}


def _draw(curve: Curve, lines: Mapping[str, list[tuple[float, ...]]], theme: str) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    text, grid, colours = _COLOURS[theme]
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "ddpomdp",
        "font.size": 10,
        "text.color": text,
        "axes.labelcolor": text,
        "axes.edgecolor": grid,
        "xtick.color": text,
        "ytick.color": text,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.6, 3.5), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot(facecolor="none", xlabel=curve.x_label, ylabel=curve.y_label)
        for (name, points), colour in zip(lines.items(), colours * (len(lines) // len(colours) + 1), strict=False):
            x, y = [point[0] for point in points], [point[1] for point in points]
            marker = "o" if len(points) <= FEW and name not in curve.dashed else ""
            style = "--" if name in curve.dashed else "-"
            axes.plot(x, y, style, color=colour, linewidth=1.8, markersize=4, label=name, marker=marker)
            if points and all(len(point) == 4 for point in points):
                low, high = [point[2] for point in points], [point[3] for point in points]
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set(xscale=curve.x_scale, yscale=curve.y_scale)
        for axis, scale in ((axes.xaxis, curve.x_scale), (axes.yaxis, curve.y_scale)):
            if scale == "log":  # 0.05, 0.1, 0.2 instead of powers of ten
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=grid, linewidth=0.8)
        axes.set_axisbelow(True)
        if lines:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return out.getvalue()


def headline(entries: list[dict[str, Any]], metrics: tuple[Metric, ...], group_by: tuple[str, ...]) -> list[dict]:
    """The headline tables: title, lines with their summaries, and the axis of the score."""
    score = metrics[0]
    tables: dict[str, dict[str, Any]] = {}
    for entry in entries:
        title = " · ".join(str(entry["group"][key]) for key in group_by[:-1])
        line = {"name": entry["group"][group_by[-1]], "metrics": entry["metrics"], "score": entry["metrics"][score.key]}
        tables.setdefault(title, {"title": title, "lines": []})["lines"].append(line)
    for table in tables.values():
        table["axis"] = _Axis(score, [line["score"] for line in table["lines"]])
        table["notes"] = _notes(table["lines"], metrics)
    return list(tables.values())


def _notes(lines: list[dict[str, Any]], metrics: tuple[Metric, ...]) -> list[str]:
    """What a reader must know about numbers without an interval or with missing episodes, each thing said once."""
    owners: dict[str, list[str]] = {}
    for metric in metrics:
        for line in lines:
            summary = line["metrics"][metric.key]
            if summary["note"]:
                owners.setdefault(summary["note"], []).append(f"{metric.title} of {line['name']}")
            if summary["missing"]:
                text = f"{summary['missing']} of {summary['missing'] + summary['episodes']} episodes have no value"
                owners.setdefault(text, []).append(f"{metric.title} of {line['name']}")
    everything = len(lines) * len(metrics)
    return [text if len(names) == everything else f"{text} ({', '.join(names)})" for text, names in owners.items()]


class _Axis:
    """Where a value stands on the score's axis, in percent."""

    def __init__(self, score: Metric, summaries: list[dict[str, Any]]) -> None:
        known = [
            value
            for summary in summaries
            for value in (summary["low"], summary["high"], *summary["per_seed"].values())
            if value is not None
        ]
        low, high = score.range or (min(known, default=0.0), max(known, default=1.0))
        pad = 0.0 if score.range else (high - low) * 0.05 or 0.5
        self.low, self.high = low - pad, high + pad

    def place(self, value: float) -> float:
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Five places in percent with their labels."""
        values = [self.low + share * (self.high - self.low) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        scale, suffix = _scale(max(map(abs, values)))
        return [(self.place(value), f"{value / scale:.3g}{suffix}".replace("-", "−")) for value in values]


def _provenance(cells: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The distinct provenance entries of all cells."""
    pairs = ((key, str(value)) for cell in cells.values() for key, value in cell["provenance"].items())
    return list(dict.fromkeys(pairs))
