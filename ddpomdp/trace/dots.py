"""The picture of a trace of another system: a lane per agent, a dot per event, a line per edge between agents.

Events of other systems have no durations, so there are no bars and no critical path; `picture.draw` is for our own.
"""

import io
from collections import Counter
from typing import Any

from ddpomdp.picture import EDGE_COLOURS, HAIR, INK, SOFT

COLOURS = {
    "orchestrator_decision": "#D55E00",
    "spawn": "#E69F00",
    "despawn": "#8C8C8C",
    "message": "#CC79A7",
    "tool_call": "#56B4E9",
    "tool_result": "#A6D8F0",
    "return": "#009E73",
    "aggregate": "#0072B2",
    "human_intervention": "#3A3A3A",
    "safety_event": "#F0E442",
}
MOST_LANES = 60  # agents with most events; the caption counts the others
MOST_EDGES = 6_000  # beyond, every k-th is drawn, and the caption says so
LABEL = 28  # characters of an agent's name


def draw(document: dict[str, Any], suffix: str, title: str, width_in: float, dpi: int) -> bytes:
    """The bytes of the picture, `.png` or `.svg`; ImportError without matplotlib (extra `plot`)."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'ddpomdp[plot]'") from error

    events = sorted(document["events"], key=lambda event: (event["t"], event["id"]))
    busy = [agent for agent, _ in Counter(event["agent"] for event in events).most_common(MOST_LANES)]
    order = list(dict.fromkeys(event["agent"] for event in events if event["agent"] in set(busy)))
    lane = {agent: i for i, agent in enumerate(order)}
    shown = [event for event in events if event["agent"] in lane]
    at = {event["id"]: (event["t"], lane[event["agent"]]) for event in shown}
    between = [e for e in document["edges"] if e["src"] in at and e["dst"] in at and at[e["src"]][1] != at[e["dst"]][1]]
    step = -(-len(between) // MOST_EDGES) or 1
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the picture does not depend on the user's style
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ddpomdp", "text.parse_math": False})
        figure = Figure(figsize=(width_in, min(14.0, 1.7 + 0.3 * len(order))), layout="constrained")
        axes = figure.subplots()
        for y in range(len(order)):
            axes.axhline(y, color=HAIR, linewidth=0.6, zorder=1)
        for edge in between[::step]:
            (x0, y0), (x1, y1) = at[edge["src"]], at[edge["dst"]]
            axes.plot([x0, x1], [y0, y1], color=EDGE_COLOURS.get(edge["type"], SOFT), linewidth=0.7, zorder=2)
        for kind, colour in COLOURS.items():
            dots = [at[event["id"]] for event in shown if event["type"] == kind]
            if dots:
                axes.scatter(*zip(*dots, strict=True), s=16, color=colour, label=kind.replace("_", " "), zorder=3)
        axes.set_yticks(range(len(order)), [_short(agent) for agent in order], fontsize=7.5, color=INK)
        axes.invert_yaxis()
        clock = next((e["import"].get("clock") for e in events if isinstance(e.get("import"), dict)), None)
        axes.set_xlabel(clock if isinstance(clock, str) else "seconds", fontsize=8, color=SOFT)
        axes.tick_params(axis="x", labelsize=7.5)
        axes.set_title(_short(title, 100), fontsize=10, loc="left", color=INK)
        figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=7.5)
        hidden = len({event["agent"] for event in events}) - len(order)
        caption = [f"{hidden} agents with fewer events are not drawn"] * (hidden > 0)
        caption += [f"every {step}th edge"] * (step > 1)
        axes.text(1, 1.01, "; ".join(caption), transform=axes.transAxes, ha="right", fontsize=7.5, color=SOFT)
        for spine in ("top", "right", "left"):
            axes.spines[spine].set_visible(False)
        out = io.BytesIO()
        stamp = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], dpi=dpi, metadata=stamp)
    return out.getvalue()


def _short(text: str, most: int = LABEL) -> str:
    """A name from a file in few characters, all of them printable ASCII: fonts lack others, and warn."""
    text = "".join(c if c.isprintable() and c.isascii() else "?" for c in text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."
