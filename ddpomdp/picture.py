"""A picture of one episode: agents as lanes over logical time, what they did, who caused what, the critical path.

    png = draw(events, "episode.png", role_names=("lead", "searcher"))  # events of one episode, [T, N]

The lead is on top, every child under the agent that bore it, in order of birth. A bar is a call, a thin grey bar a
chosen wait, a hairline a life that is idle or blocked. Spawns and delegations go down from the end of the call to
those it started; a return runs along its lane until the parent reads it, and up into that aggregate; messages are
dashed. The black line is the critical path: what the wall-clock was waiting for. Axis letters as in `critical_path`.
"""

import io
import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddpomdp.critical_path import Calls, Lives, Timeline, timeline
from ddpomdp.enums import EventKind

# Okabe and Ito's palette (2008), safe for colour-blind readers; greys for what is not work.
COLOURS = {
    EventKind.TOOL: "#56B4E9",
    EventKind.SPAWN: "#E69F00",
    EventKind.DELEGATE: "#D55E00",
    EventKind.MESSAGE: "#CC79A7",
    EventKind.RETURN: "#009E73",
    EventKind.AGGREGATE: "#0072B2",
    EventKind.FOLD: "#F0E442",
    EventKind.DESPAWN: "#8C8C8C",
    EventKind.STOP: "#3A3A3A",
    EventKind.WAIT: "#D4D4D4",
}
EDGE_COLOURS = {"spawn": "#B87F00", "delegate": "#D55E00", "return": "#009E73", "message": "#B8568C"}
INK, SOFT, HAIR = "#1A1A1A", "#6B6B6B", "#CFCFCF"
SHORT = {
    EventKind.TOOL: "",
    EventKind.AGGREGATE: "aggr",
    EventKind.DELEGATE: "deleg",
    EventKind.MESSAGE: "msg",
    EventKind.RETURN: "ret",
}
DARK = {EventKind.AGGREGATE, EventKind.RETURN, EventKind.DELEGATE, EventKind.STOP}  # bars that carry white text

DASHES: Any = (0, (3, 1.5))
LEGEND: dict[str, Any] = {
    "loc": "upper left",
    "frameon": False,
    "fontsize": 7.5,
    "labelcolor": SOFT,
    "handlelength": 1.4,
    "handleheight": 0.8,
    "columnspacing": 1.5,
    "handletextpad": 0.5,
    "borderpad": 0,
    "borderaxespad": 0,
}

MAX_HEIGHT_IN = 14.0
MARGINS_IN = 2.6  # what stands above and below the lanes takes less, from 9 inches of width
MAX_EXACT = 8_000  # bars drawn one by one; beyond, each pixel shows the call that fills most of it
MAX_EDGES = 6_000  # of each kind; beyond, every k-th is drawn, and the caption says so
MAX_BYTES = 900_000  # a larger PNG is stored with a palette of 128 colours
COLLAPSE_FROM = 40  # lanes; from here on lives that never worked are not drawn, and the caption says so
LABELLED_FROM_IN = 0.19  # lane pitch from which calls carry their names and edges arrow heads


def draw(
    events: Any,
    path: str | Path | None = None,
    *,
    title: str = "",
    role_names: Sequence[str] | None = None,
    tool_names: Sequence[str] | None = None,
    width_in: float = 12.0,
    dpi: int = 120,
) -> bytes:
    """Draw the events of one episode.

    Args:
      events: object with array attributes of shape [T, N], as `critical_path.timeline` takes; `tokens` int[T, N, 1+A]
        is used for the names of tools where `tool_names` is given.
      path: where to write the picture; suffix `.png` or `.svg`. None: write nothing, return PNG.
      title: heading.
      role_names: name of each role, by its number; default `lead` for the root, `role1` and so on.
      tool_names: name of each tool, by `tokens[..., 0]`; default: calls of tools carry their duration only.
      width_in: width, inches. The height follows from the number of lanes, at most 14 inches.
      dpi: dots per inch.

    Returns:
      The bytes of the PNG, or of the SVG where `path` ends in `.svg`.

    Raises:
      ImportError: matplotlib (extra `plot`) is not installed.
      ValueError: unknown suffix, width or dpi out of range, or events that are not one episode.
    """
    suffix = Path(path).suffix.lower() if path is not None else ".png"
    if suffix not in (".png", ".svg"):
        raise ValueError(f"path ends in {suffix!r}; a picture is written as .png or .svg")
    if not 4 <= width_in <= 60 or not 40 <= dpi <= 600:
        raise ValueError(f"width_in={width_in}, dpi={dpi}; allowed are 4 to 60 inches, 40 to 600 dots per inch")
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'ddpomdp[plot]'") from error

    time = timeline(events)
    lanes = _lanes(time, width_in, dpi, names(time.lives, role_names))
    words = _words(events, time.calls, tool_names) if lanes.roomy else []
    style: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "svg.fonttype": "none",
        "svg.hashsalt": "ddpomdp",
        "text.usetex": False,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the picture does not depend on the user's style
        matplotlib.rcParams.update(style)
        figure = _Sheet(time, lanes, words, dpi).draw(title)
        out = io.BytesIO()
        stamp = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], dpi=dpi, metadata=stamp)
    picture = out.getvalue()
    if suffix == ".png" and len(picture) > MAX_BYTES:
        picture = _in_fewer_colours(picture)
    if path is not None:
        Path(path).write_bytes(picture)
    return picture


def names(lives: Lives, role_names: Sequence[str] | None = None) -> list[str]:
    """The outside name of each life: `lead` for the root, else role and number in order of birth (`searcher_17`)."""
    count: dict[int, int] = {}
    out = []
    for uid, role in zip(lives.uid.tolist(), lives.role.tolist(), strict=True):
        name = role_names[role] if role_names is not None and 0 <= role < len(role_names) else None
        if uid == 0:
            out.append(name or "lead")
            continue
        count[role] = count.get(role, 0) + 1
        out.append(f"{name or f'role{role}'}_{count[role]}")
    return out


@dataclass(frozen=True, eq=False)
class _Lanes:
    """Where each life is drawn, in inches below the top of the lanes; NaN for lives that are not drawn."""

    y: np.ndarray  # float[U]  middle of the lane
    height: np.ndarray  # float[U]  of its bars
    names: list[str]  # [U]
    pitch: float
    total: float
    width: float
    left: float  # margin that holds the labels
    hidden: int

    @property
    def roomy(self) -> bool:
        return self.pitch >= LABELLED_FROM_IN


def _lanes(time: Timeline, width: float, dpi: int, labels: list[str]) -> _Lanes:
    lives, calls = time.lives, time.calls
    order = _tree_order(lives)
    worked = np.zeros(len(lives), bool)
    worked[calls.life[~np.isin(calls.kind, (EventKind.WAIT, EventKind.RETURN))]] = True
    worked[calls.life[time.critical]] = True
    worked[0] = True
    shown = order if len(lives) < COLLAPSE_FROM else order[worked[order]]
    count = len(shown)

    # Parents get lanes that can be read where the others are thin, and some air above: before their family and after.
    parent = np.isin(shown, lives.parent[shown]) | (shown == 0)
    family = np.where(parent & (shown != 0), shown, lives.parent[shown])
    border = np.append(False, family[1:] != family[:-1])
    space = MAX_HEIGHT_IN - MARGINS_IN * max(1.0, 9 / width)
    pitch, thick, gap = max(
        (_fit(parent, border, space, dpi, big, air) for big, air in ((0.15, 0.03), (0.10, 0.02))),
        key=lambda fit: fit[0],
    )
    height = np.where(thick > 0.08, 0.74, 0.84) * thick
    height = np.clip(np.round(height * dpi), 1, np.maximum(np.floor(thick * dpi) - 1, 1)) / dpi
    top = np.cumsum(thick + gap) - thick
    y_life, height_life = np.full(len(lives), np.nan), np.full(len(lives), np.nan)
    y_life[shown], height_life[shown] = top + height / 2, height
    longest = max(len(labels[life]) for life in shown)
    return _Lanes(
        y=y_life,
        height=height_life,
        names=labels,
        pitch=pitch,
        total=float((thick + gap).sum()),
        width=width,
        left=round(min(0.3 + 0.08 * longest, width / 4) * dpi) / dpi,
        hidden=len(lives) - count,
    )


def _fit(parent: np.ndarray, border: np.ndarray, space: float, dpi: int, big: float, air: float):
    """The widest lanes that fit, inches: pitch, thickness of each lane (parents at least `big`), gap above each."""
    pitch = 0.36 * min(1.0, math.sqrt(12 / len(parent)))
    big = big if len(parent) > 2 * parent.sum() else 0.0
    while True:
        # Lanes of whole pixels are sharp, even, and make small files.
        snapped = math.floor(pitch * dpi) / dpi if pitch * dpi >= 2 else pitch
        thick = np.where(parent, max(round(big * dpi) / dpi, snapped), snapped)
        gap = np.where(border, round((0.2 * snapped + air) * dpi) / dpi, 0.0)
        if thick.sum() + gap.sum() <= space or pitch < 1e-3:
            return snapped, thick, gap
        pitch *= 0.98


def _tree_order(lives: Lives) -> np.ndarray:
    """Indices of the lives, root first, children under their parent in order of birth."""
    children: dict[int, list[int]] = {}
    for life in np.lexsort((lives.uid, lives.start_ms)).tolist():
        children.setdefault(int(lives.parent[life]), []).append(life)
    order, stack = [], children.get(-1, [])[::-1]
    while stack:
        life = stack.pop()
        order.append(life)
        stack.extend(reversed(children.get(life, [])))
    return np.array(order)


def _words(events: Any, calls: Calls, tool_names: Sequence[str] | None) -> list[str]:
    """What to write on each call."""
    words: list[str] = [SHORT.get(EventKind(kind), EventKind(kind).name.lower()) for kind in calls.kind.tolist()]
    if tool_names is not None and hasattr(events, "tokens"):
        tools = np.asarray(events.tokens)[calls.row, calls.slot, 0]
        for index in np.flatnonzero(calls.kind == EventKind.TOOL).tolist():
            tool = int(tools[index])
            if 0 <= tool < len(tool_names):
                words[index] = tool_names[tool]
    return words


class _Sheet:
    """One figure in the making. Horizontal unit: s, min or h; vertical unit: inches, downwards."""

    def __init__(self, time: Timeline, lanes: _Lanes, words: list[str], dpi: int):
        self.time, self.lanes, self.words, self.dpi = time, lanes, words, dpi
        self.end_ms = max(int(time.calls.end_ms.max(initial=0)), int(time.lives.end_ms.max()), 1)
        self.unit, self.unit_ms = next(
            (name, ms)
            for name, ms, upto in (("s", 1e3, 3e5), ("min", 6e4, 1.08e7), ("h", 3.6e6, np.inf))
            if self.end_ms <= upto
        )
        self.inside = lanes.width - lanes.left - round(0.25 * dpi) / dpi  # width of the lanes, inches
        self.inch = self.end_ms * 1.01 / self.unit_ms / self.inside  # one inch in units of time
        self.start = time.calls.start_ms / self.unit_ms
        self.end = time.calls.end_ms / self.unit_ms
        self.y = lanes.y[time.calls.life]
        self.height = lanes.height[time.calls.life]
        self.shown = ~np.isnan(self.y)
        self.exact = int(self.shown.sum()) <= MAX_EXACT
        self.step = {kind: max(1, -(-len(time.edges.of(kind)) // MAX_EDGES)) for kind in EDGE_COLOURS}

    def draw(self, title: str):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        caption = textwrap.wrap(self._caption(), max(int(self.inside * 15), 20))
        legend = self._legend()
        head, gap, band = (0.42 if title else 0.12) + 0.21 * len(legend), 0.08, 0.42
        foot = 0.50 + 0.14 * len(caption)
        pad, head, gap, band, foot = (round(size * self.dpi) / self.dpi for size in (0.06, head, gap, band, foot))
        high = self.lanes.total + 2 * pad
        tall, wide = head + high + gap + band + foot, self.lanes.width
        figure = Figure(figsize=(wide, tall), facecolor="white")
        FigureCanvasAgg(figure)
        left, inside = self.lanes.left / wide, self.inside / wide
        self.ax = figure.add_axes((left, (foot + band + gap) / tall, inside, high / tall))
        below = figure.add_axes((left, foot / tall, inside, band / tall))
        self.ax.set_xlim(0, self.inch * self.inside)
        self.ax.set_ylim(self.lanes.total + pad, -pad)
        self._lifelines()
        self._bars()
        self._edges()
        self._critical()
        self._labels()
        if self.lanes.roomy:
            self._call_words()
        self._axes(below)
        small = {"fontsize": 7.5, "color": SOFT, "parse_math": False}
        figure.text(left, 0.08 / tall, "\n".join(caption), va="bottom", linespacing=1.4, **small)
        figure.text(left, 1 - 0.13 / tall, title, fontsize=12, fontweight="bold", color=INK, va="top", parse_math=False)
        for row, handles in enumerate(legend):
            corner = left, 1 - ((0.38 if title else 0.08) + 0.21 * row) / tall
            figure.legend(handles=handles, bbox_to_anchor=corner, ncols=len(handles), **LEGEND)
        return figure

    def _rectangles(self, left, right, y, height, colours, zorder):
        from matplotlib.collections import PolyCollection

        right = np.maximum(right, left + (0.03 if self.lanes.roomy else 1 / self.dpi) * self.inch)
        top, bottom = y - height / 2, y + height / 2
        corners: Any = np.stack([left, top, right, top, right, bottom, left, bottom], axis=-1).reshape(-1, 4, 2)
        line = 0.6 if self.lanes.roomy else 0.3 if self.lanes.pitch > 0.06 and len(left) <= MAX_EXACT // 2 else 0
        edge: dict[str, Any] = {"edgecolors": "white", "linewidths": line} if line else {"edgecolors": "none"}
        bars = PolyCollection(corners, facecolors=colours, zorder=zorder, **edge)
        bars.set_rasterized(len(corners) > MAX_EXACT // 2)
        self.ax.add_collection(bars, autolim=False)

    def _segments(self, points: Any, colour, width, zorder, style="-", alpha=1.0):
        from matplotlib.collections import LineCollection

        lines = LineCollection(
            points, colors=colour, linewidths=width, linestyles=style, alpha=alpha, zorder=zorder, capstyle="butt"
        )
        lines.set_rasterized(len(points) > MAX_EXACT // 2)
        self.ax.add_collection(lines, autolim=False)

    def _lifelines(self):
        lives, y = self.time.lives, self.lanes.y
        left, right = lives.start_ms / self.unit_ms, lives.end_ms / self.unit_ms
        shown = ~np.isnan(y)
        lines = np.stack([np.stack([left, y], -1), np.stack([right, y], -1)], 1)[shown]
        self._segments(lines, HAIR, 1.0 if self.lanes.roomy else min(0.6, self.lanes.pitch * 14), 1)
        gone = shown & lives.despawned
        if self.lanes.pitch > 0.08 and gone.any():
            self.ax.scatter(right[gone] + 0.04 * self.inch, y[gone], marker="x", s=9, c=INK, linewidths=0.9, zorder=7)

    def _bars(self):
        calls = self.time.calls
        some = self.shown
        bars = (self.start[some], self.end[some], calls.life[some], calls.kind[some])
        left, right, life, kind = bars if self.exact else self._merged(np.flatnonzero(some))
        palette: Any = np.array([COLOURS[kind] for kind in EventKind])
        waits = kind == EventKind.WAIT
        height = self.lanes.height[life] * np.where(waits, 0.42, 1.0)
        for part, zorder in ((waits, 2), (~waits, 4)):
            y = self.lanes.y[life[part]]
            self._rectangles(left[part], right[part], y, height[part], palette[kind[part]], zorder)

    def _merged(self, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bars at the resolution of the picture: in each pixel of each lane the kind with most time, runs joined."""
        time, kinds = self.time.calls, len(EventKind)
        pixels = int(self.inside * self.dpi)
        scale = pixels / (self.inch * self.inside)
        start, end = self.start[calls] * scale, self.end[calls] * scale
        first = np.minimum(start.astype(np.int64), pixels - 1)
        span = np.clip(np.ceil(end).astype(np.int64), first + 1, pixels) - first
        call = np.repeat(np.arange(len(calls)), span)
        pixel = np.arange(len(call)) - np.repeat(np.cumsum(span) - span, span) + first[call]
        share = np.minimum(end[call], pixel + 1) - np.maximum(start[call], pixel)
        cell = (time.life[calls][call] * pixels + pixel) * kinds + time.kind[calls][call]
        filled = np.bincount(cell, np.maximum(share, 1e-9), minlength=len(self.time.lives) * pixels * kinds)
        filled = filled.reshape(-1, kinds)
        top = np.where(filled.any(1), filled.argmax(1), -1).reshape(-1, pixels)
        change = np.diff(top, axis=1, prepend=-2) != 0
        life, left = np.nonzero(change)
        following = np.append(left[1:], 0)
        right = np.where(following > left, following, pixels)
        kind = top[life, left]
        keep = kind >= 0
        return left[keep] / scale, right[keep] / scale, life[keep], kind[keep]

    def _edges(self):
        for kind, colour in EDGE_COLOURS.items():
            edges = self.time.edges.of(kind)
            shown = self.shown[edges.source] & self.shown[edges.target]
            source, target = edges.source[shown], edges.target[shown]
            if not source.size:
                continue
            step = self.step[kind]
            if kind == "message":
                self._message_edges(source[::step], target[::step], colour)
            elif kind == "return":
                self._family_edges(target, source, self.start[target] + self._bend(target), step, colour, up=True)
            else:
                self._family_edges(source, target, self.end[source] - self._bend(source), step, colour, up=False)

    def _message_edges(self, source, target, colour):
        """Dashed, from the end of the call to the near side of the receiver's lane at the arrival."""
        arrival = self.time.calls.arrival_ms[source] / self.unit_ms
        up = np.sign(self.y[source] - self.y[target])
        near = self.y[target] + up * self.height[target] / 2
        width, alpha = (0.9, 0.9) if self.lanes.roomy else (0.5, float(np.clip(12 / math.sqrt(len(source)), 0.25, 0.8)))
        lines = self._polyline((self.end[source], self.y[source]), (arrival, near))
        self._segments(lines, colour, width, 3, DASHES, alpha)
        if self.lanes.roomy:
            self._heads(arrival, near, up, colour)

    def _family_edges(self, parent, child, bus, step, colour, *, up: bool):
        """One trunk at each call of a parent, and a branch along the lane of each child."""
        outside = self.end[child] if up else self.start[child]
        branches = self._polyline((outside, self.y[child]), (bus, self.y[child]))
        width = 0.9 if self.lanes.roomy else 0.5
        self._segments(branches[::step], colour, width, 3, alpha=0.9 if self.lanes.roomy else 0.45)
        trunk, first, member = np.unique(parent, return_index=True, return_inverse=True)
        low, high = self.y[trunk].copy(), self.y[trunk].copy()
        np.minimum.at(low, member, self.y[child])
        np.maximum.at(high, member, self.y[child])
        self._segments(self._polyline((bus[first], low), (bus[first], high)), colour, width, 3, alpha=0.9)
        if self.lanes.roomy and up:
            self._heads(bus[first], self.y[trunk] + self.height[trunk] / 2, 1, colour)
        elif self.lanes.roomy:
            self._heads(outside, self.y[child], 0, colour)

    def _bend(self, calls: np.ndarray) -> np.ndarray:
        """How far inside a parent's bar its edges leave or enter, in units of time."""
        return np.minimum(0.07 * self.inch if self.lanes.roomy else 0.0, (self.end - self.start)[calls] / 2)

    @staticmethod
    def _polyline(*points):
        return np.stack([np.stack(np.broadcast_arrays(x, y), -1) for x, y in points], 1)

    def _heads(self, x, y, up, colour):
        """Small triangles with their tip at (x, y): to the right (0), upwards (1) or downwards (-1)."""
        from matplotlib.collections import PolyCollection

        long, half = 0.055, 0.028
        x, y, up = np.broadcast_arrays(x, y, up)
        across = np.where(up == 0, long, half) * self.inch
        along = np.where(up == 0, half, long * np.where(up == 0, 1, up))
        one = np.stack([x - across, np.where(up == 0, y - along, y + along)], -1)
        two = np.stack([np.where(up == 0, x - across, x + across), y + along], -1)
        corners: Any = np.stack([np.stack([x, y], -1), one, two], 1)
        heads = PolyCollection(corners, facecolors=colour, linewidths=0, zorder=5)
        self.ax.add_collection(heads, autolim=False)

    def _critical(self):
        from matplotlib.patheffects import Normal, Stroke

        path, calls = self.time.critical, self.time.calls
        if not path.size:
            return
        roomy = self.lanes.roomy
        y = self.y + np.where(self.height > 0.06, self.height / 2, 0)
        bend = np.zeros(len(calls))
        bend[path] = self._bend(path)
        points = [(self.start[path[0]], y[path[0]])]
        for here, after in itertools.pairwise(path):
            if calls.life[here] != calls.life[after]:
                down = y[after] > y[here]
                turn = self.end[here] - bend[here] if down else self.start[after] + bend[after]
                points += [(turn, y[here]), (turn, y[after])]
        points.append((self.end[path[-1]], y[path[-1]]))
        x, y = zip(*points, strict=True)
        width = 2.2 if roomy else 1.6
        halo = [Stroke(linewidth=width + 1.6, foreground="white"), Normal()]
        self.ax.plot(
            x,
            y,
            color=INK,
            linewidth=width,
            solid_joinstyle="round",
            solid_capstyle="butt",
            zorder=6,
            path_effects=halo,
        )

    def _labels(self):
        lanes, lives = self.lanes, self.time.lives
        size = float(np.clip(lanes.pitch * 72 * 0.5, 6.0, 8.5))
        room = size * 1.25 / 72
        critical = set(self.time.calls.life[self.time.critical].tolist())
        parents = set(lives.parent.tolist())
        shown = [life for life in np.argsort(lanes.y).tolist() if not np.isnan(lanes.y[life])]
        step = next(k for k in (1, 2, 5, 10, 20, 50, 100, 10**9) if k * lanes.pitch >= room)
        regular = [life for life in shown if life and int(lanes.names[life].rsplit("_", 1)[1]) % step == 0]
        taken: list[float] = []
        first = [0, *sorted(parents - {-1, 0}), *sorted(critical - {0})]
        for life in dict.fromkeys([*first, *regular]):
            y = float(lanes.y[life])
            if np.isnan(y) or (lanes.pitch < room and any(abs(y - other) < room for other in taken)):
                continue
            taken.append(y)
            bold = life in critical
            self.ax.text(
                -0.07 * self.inch,
                y,
                lanes.names[life],
                ha="right",
                va="center",
                fontsize=size,
                color=INK if bold or life in parents else SOFT,
                fontweight="bold" if bold else "normal",
                parse_math=False,
            )

    def _call_words(self):
        calls = self.time.calls
        size = 6.3
        width = (self.end - self.start) / self.inch
        letter = 0.62 * size / 72
        room = ((width - 0.05) / letter).astype(int)  # letters that fit
        fits = np.array([len(word) for word in self.words]) < room
        # A bare name stands on all calls of a kind or on none: on a few of them it would look like a distinction.
        common = {word for word in set(self.words) if fits[[w == word for w in self.words]].mean() >= 0.5}
        for index in np.argsort(-width)[:600].tolist():
            if not self.shown[index] or calls.kind[index] == EventKind.WAIT:
                continue
            word = self.words[index]
            seconds = f"{(calls.end_ms[index] - calls.start_ms[index]) / 1e3:.0f} s"
            options = (f"{word} {seconds}".strip(), word if word in common else "")
            fitting = [word for word in options if word and len(word) < room[index]]
            if fitting:
                kind = EventKind(int(calls.kind[index]))
                self.ax.text(
                    float(self.start[index] + self.end[index]) / 2,
                    float(self.y[index]),
                    fitting[0],
                    ha="center",
                    va="center_baseline",
                    fontsize=size,
                    color="white" if kind in DARK else INK,
                    zorder=7,
                    parse_math=False,
                )

    def _axes(self, below):
        """The time axis, and under the lanes the number of agents at work."""
        from matplotlib.ticker import MaxNLocator

        working = self._working(below)
        for axes in (self.ax, below):
            axes.set_xlim(0, self.inch * self.inside)
            axes.xaxis.set_major_locator(MaxNLocator(max(4, int(self.inside)), steps=[1, 2, 5, 10]))
            for side in ("top", "right", "left", "bottom"):
                axes.spines[side].set_visible(False)
            axes.grid(axis="x", color="#EBEBEB", linewidth=0.6, zorder=0)
            axes.set_axisbelow(True)
        self.ax.tick_params(length=0, labelleft=False, labelbottom=False)
        below.tick_params(length=2, colors=SOFT, labelsize=7.5, width=0.6)
        below.set_yticks([working], [f"{working:.0f}"])
        below.set_ylim(0, working * 1.08)
        below.spines["bottom"].set_visible(True)
        below.spines["bottom"].set_color(HAIR)
        below.set_xlabel(f"logical time ({self.unit})", fontsize=8, color=SOFT, labelpad=2)
        below.text(-0.07 * self.inch, working * 0.4, "at work", ha="right", va="center", fontsize=7, color=SOFT)
        wall = self.time.wall_ms / self.unit_ms
        if self.end_ms > self.time.wall_ms * 1.002:
            self.ax.axvline(wall, color=SOFT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=5)

    def _working(self, axes) -> float:
        """Mean number of calls under way in each pixel; returns its maximum."""
        busy = self.time.calls.kind != EventKind.WAIT
        at = np.linspace(0, self.inch * self.inside, int(self.inside * self.dpi) + 1)
        done = np.zeros_like(at)
        for times, sign in ((self.start[busy], 1), (self.end[busy], -1)):
            times = np.sort(times)
            before = np.searchsorted(times, at, side="right")
            done += sign * (before * at - np.append(0, np.cumsum(times))[before])
        level = np.maximum(np.diff(done) / np.diff(at), 0)
        axes.stairs(level, at, fill=True, color="#BFDDF0", linewidth=0)
        axes.stairs(level, at, color="#0072B2", linewidth=0.7)
        return max(round(float(level.max(initial=0))), 1)

    def _legend(self) -> list[list[Any]]:
        """Rows of legend handles, each as wide as the lanes at most: kinds of call, then kinds of line."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        calls, edges = self.time.calls, self.time.edges
        kinds: list[Any] = [
            Patch(facecolor=colour, label=kind.name.lower())
            for kind, colour in COLOURS.items()
            if (calls.kind == kind).any()
        ]
        style: dict[str, Any] = {kind: DASHES if kind == "message" else "-" for kind in EDGE_COLOURS}
        lines: list[Any] = [
            Line2D([], [], color=colour, linewidth=1.2, linestyle=style[kind], label=f"{kind} edge")
            for kind, colour in EDGE_COLOURS.items()
            if len(edges.of(kind))
        ]
        lines.append(Line2D([], [], color=INK, linewidth=2.4, label="critical path"))
        lines.append(Line2D([], [], color=HAIR, linewidth=1.2, label="idle or blocked"))
        rows = []
        for handles in (kinds, lines):
            used = self.inside
            for handle in handles:
                size = 0.36 + 0.068 * len(handle.get_label())
                if used + size > self.inside:
                    rows.append([])
                    used = 0.0
                rows[-1].append(handle)
                used += size
        return rows

    def _caption(self) -> str:
        time = self.time
        facts = [
            _count(len(time.lives), "agent"),
            _count(len(time.calls), "call"),
            f"wall-clock {_duration(time.wall_ms)}",
            f"serial time {_duration(time.serial_ms)} ({time.serial_ms / max(time.wall_ms, 1):.1f}×)",
            f"critical path {_count(len(time.critical), 'call')}"
            f" in {_count(len(set(time.calls.life[time.critical].tolist())), 'agent')}",
        ]
        root = time.calls.kind[time.calls.life == 0]
        if not root.size or root[-1] != EventKind.STOP:
            facts.append("no stop")
        if self.lanes.hidden:
            facts.append(f"{_count(self.lanes.hidden, 'agent')} that never worked not drawn")
        if not self.exact:
            facts.append("each pixel shows the call that fills most of it")
        facts += [f"1 in {step} {kind} edges drawn" for kind, step in self.step.items() if step > 1]
        return " · ".join(facts)


def _in_fewer_colours(png: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    palette = Image.Quantize.FASTOCTREE
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128, palette, dither=Image.Dither.NONE).save(
        out, format="png", optimize=True
    )
    return out.getvalue()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _duration(ms: int) -> str:
    if ms < 120_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms / 6e4:.1f} min" if ms < 7_200_000 else f"{ms / 3.6e6:.1f} h"
