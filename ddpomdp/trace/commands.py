"""The verbs of `ddpomdp trace`. Nothing heavy is imported before a verb runs."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ddpomdp.options import UsageError, bad_input

File = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
Json = Annotated[bool, tyro.conf.arg(name="json")]
SHOWN = 50  # problems printed


@dataclass(frozen=True)
class Validate:
    """List what is wrong with a trace: fields, ids, edges; of ours, also whether every number follows from the records.

    Exit code 0 if nothing is, 1 if something is, 2 if the file is no strict JSON.

    Example: ddpomdp trace validate episode.json
    """

    file: File
    """Trace, ours or under the survey's schema."""
    as_json: Json = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Check the file."""
        from ddpomdp.trace import check
        from ddpomdp.trace import text as text_

        _no_options("validate", options)
        text = text_.read(self.file)
        found = check.problems(text_.parse(text), text)
        errors = sum(problem.level == "error" for problem in found)
        if self.as_json:
            _print_json({"ok": not errors, "problems": [asdict(problem) for problem in found]})
        else:
            _print_problems(found)
            if not found:
                print(f"{self.file}: a valid trace")
        return 1 if errors else 0


@dataclass(frozen=True)
class Import:
    """Keep what can be kept of a trace or transcript of any system, list what cannot, and write the rest as a trace.

    The format is told from the content: a trace under the survey's schema (survey), a Who&When log, Claude Code
    transcripts (a .jsonl file, or a folder of them), OpenTelemetry spans, an ATIF trajectory. A folder, or a file with
    several teams, needs an --out that is a folder: it gets one file per team.

    Example: ddpomdp trace import session.jsonl --out session.json
    """

    file: File
    """File or folder to import."""
    out: Path
    """File to write, or a folder."""
    format: Literal["auto", "survey", "who-and-when", "claude-code", "otel", "atif"] = "auto"
    """Format of the file."""
    strict: bool = False
    """Write nothing if anything would be left out."""
    as_json: Json = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Import the file."""
        from ddpomdp.trace import importers

        _no_options("import", options)
        folder = self.out.is_dir()
        if not folder:
            _check_out(self.out)
        format = importers.detect(self.file) if self.format == "auto" else self.format
        if format in (None, "survey"):
            if folder:
                raise UsageError(f"cannot write {self.out}: it is a folder")
            return self._survey()
        if not folder:
            teams = [importers.import_file(self.file, format, self.strict)]
            teams[0].trace.save(self.out)
        else:
            if self.strict:  # nothing is written unless all of it can be
                for _ in importers.import_all(self.file, format, True):
                    pass
            teams = importers.import_all(self.file, format, self.strict)
        return self._tell(teams, folder)

    def _survey(self) -> int:
        from ddpomdp.trace import salvage

        kept = salvage(self.file)
        if kept.trace is None:
            raise UsageError(f"{self.file}: nothing can be kept; {next(iter(kept.problems), 'no events')}")
        if self.strict and kept.left_out:
            first = next(problem for problem in kept.problems if problem.record)
            raise UsageError(f"{self.file}: {len(kept.left_out)} records cannot be kept; {first}")
        kept.trace.save(self.out)
        numbers = {
            "events_in": kept.events_in,
            "events_kept": len(kept.trace.events),
            "edges_in": kept.edges_in,
            "edges_kept": len(kept.trace.edges),
            "left_out": len(kept.left_out),
        }
        if self.as_json:
            _print_json({**numbers, "problems": [asdict(problem) for problem in kept.problems]})
        else:
            _print_problems(kept.problems)
            print(_sentence(numbers))
        return 0

    def _tell(self, teams: Iterable[Any], folder: bool) -> int:
        told, written = [], 0
        for team in teams:
            if folder:
                team.trace.save(self.out / f"{team.trace.document['trace_id']}.json")
            written += 1
            numbers = {
                "records_in": team.records_in,
                "records_kept": team.records_kept,
                "left_out": len(team.left_out),
                **team.counts,
                "events": len(team.trace.events),
                "edges": len(team.trace.edges),
            }
            if self.as_json:
                about = {"source": str(team.source), "format": team.format, "trace_id": team.trace.document["trace_id"]}
                told.append({**about, **numbers, "problems": [asdict(problem) for problem in team.problems]})
            else:
                _print_problems(team.problems)
                print(f"{_shown(str(team.source))}: {team.format}: {_sentence(numbers)}")
        if not written:
            raise UsageError(f"{self.file}: there is no event in it")
        if self.as_json:
            _print_json(told if folder else told[0])
        return 0


def _sentence(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in numbers.items())


@dataclass(frozen=True)
class Metrics:
    """Print the survey's evaluation layers E1 to E4 and its five operational metrics, and how large the trace is.

    Example: ddpomdp trace metrics episode.json
    """

    file: File
    """Trace, ours or under the survey's schema."""
    as_json: Json = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Compute and print."""
        from ddpomdp.cli import print_table
        from ddpomdp.trace import Trace, measures

        _no_options("metrics", options)
        trace = Trace.load(self.file)
        found, scale = measures.metrics(trace), measures.scale(trace)
        present = measures.layers(found)
        if self.as_json:
            _print_json({"metrics": {n: asdict(m) for n, m in found.items()}, "layers": present, "scale": scale})
            return 0
        rows = [
            (
                name.replace("_", " "),
                "-" if measure.value is None else f"{measure.value:,.4g}",
                measures.LAYERS[measure.layer],
                "operational" if measure.operational else "",
                measure.reason or measure.source,
            )
            for name, measure in found.items()
        ]
        print_table(("metric", "value", "layer", "", "from"), rows)
        print(f"\nlayers with a value: {', '.join(present) or 'none'}\n")
        print_table(("scale", ""), [(name.replace("_", " "), _shown(str(value))) for name, value in scale.items()])
        return 0


@dataclass(frozen=True)
class Replay:
    """Play the recorded turns again and hold every event against the record.

    Exit code 0 if all are equal, 1 with the first difference if not, 2 if the environment here is another one.

    Example: ddpomdp trace replay episode.json
    """

    file: File
    """Trace written by ddpomdp."""
    as_json: Json = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Replay the file."""
        _no_options("replay", options)
        from ddpomdp.trace import Trace

        trace = Trace.load(self.file)
        from ddpomdp.progress import waiting
        from ddpomdp.trace import replaying

        try:
            with waiting("compiling and playing"):
                ticks = replaying.verify(trace)
        except replaying.Difference as error:
            if self.as_json:
                place = {"tick": error.tick, "slot": error.slot, "field": error.field}
                _print_json({"ok": False, **place, "recorded": error.recorded, "replayed": error.replayed})
            else:
                print(f"ddpomdp: {error}", file=sys.stderr)
            return 1
        if self.as_json:
            _print_json({"ok": True, "ticks": ticks, "rewards": trace.rewards})
        else:
            print(f"{self.file}: {ticks} ticks, every event as recorded")
        return 0


@dataclass(frozen=True)
class Plot:
    """Draw a trace as lanes over time; one of another system as dots, since its events have no durations.

    Example: ddpomdp trace plot episode.json --out episode.png
    """

    file: File
    """Trace, ours or under the survey's schema."""
    out: Path
    """Picture to write, .png or .svg."""
    title: str = ""
    """Heading; the task if not given."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Draw the file."""
        _no_options("plot", options)
        from ddpomdp.cli import Play
        from ddpomdp.trace import Trace, plot

        Play._check_plot(self.out)
        trace = Trace.load(self.file)
        with bad_input():
            plot(trace, self.out, title=_shown(self.title or trace.document["task_id"]))
        print(self.out)
        return 0


@dataclass(frozen=True)
class Export:
    """Write a trace in another program's format: perfetto (ui.perfetto.dev), graphml (needs networkx), or as it is.

    Example: ddpomdp trace export episode.json --to perfetto --out episode.perfetto.json
    """

    file: File
    """Trace, ours or under the survey's schema."""
    out: Path
    """File to write."""
    to: Literal["perfetto", "graphml", "json"] = "perfetto"
    """Format."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Convert the file."""
        from ddpomdp.bench.strictjson import write_atomic
        from ddpomdp.trace import Trace, to_networkx, to_perfetto

        _no_options("export", options)
        _check_out(self.out)
        trace = Trace.load(self.file)
        if self.to == "graphml":
            with bad_input():
                graph = to_networkx(trace)
                import networkx

                text = "\n".join(networkx.generate_graphml(graph)) + "\n"
        else:
            text = to_perfetto(trace) if self.to == "perfetto" else trace.to_json()
        write_atomic(self.out, text)
        print(self.out)
        return 0


VERBS: dict[str, Any] = {
    "validate": Validate,
    "import": Import,
    "metrics": Metrics,
    "replay": Replay,
    "plot": Plot,
    "export": Export,
}


def check_save(path: Path) -> None:
    """Refuse, before anything is computed, a trace that could not be written."""
    if path.suffix.lower() != ".json":
        raise UsageError(f"save {path}; allowed: a file that ends in .json")
    _check_out(path)


def _check_out(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: no folder {path.absolute().parent}")


def _no_options(verb: str, options: dict[str, Any]) -> None:
    if options:
        raise UsageError(f"trace {verb} takes no key=value options, got {', '.join(options)}")


def _print_problems(problems: Iterable[Any]) -> None:
    lines = [_shown(str(problem)) for problem in problems]
    print("\n".join(lines[:SHOWN]), end="\n" if lines else "")
    if len(lines) > SHOWN:
        print(f"and {len(lines) - SHOWN:,} more (--json lists all)")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _shown(text: str) -> str:
    """`text` from a file, its control characters spelled out: a terminal would obey them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
