"""The command line. A verb is a dataclass: its fields are what tyro parses, calling it with the options runs it.

Other packages add verbs through the entry-point group `ddpomdp.commands`: such a dataclass, or a dict of them for a
verb with sub-verbs. JAX is imported only by the verbs that need it.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ddpomdp import plugins
from ddpomdp._version import __version__
from ddpomdp.credit_command import Worth
from ddpomdp.options import UsageError, bad_input, parse_options, refusal
from ddpomdp.trace import commands as trace_commands

GROUP = "ddpomdp.commands"
Positional = tyro.conf.Positional
arg = tyro.conf.arg
_TYRO = (tyro.conf.FlagCreatePairsOff,)


@dataclass(frozen=True)
class Envs:
    """List the environments.

    Example: ddpomdp envs --json
    """

    as_json: Annotated[bool, arg(name="json")] = False
    """Print a JSON list."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Print the list."""
        import ddpomdp

        _no_options("envs", options)
        points = plugins.found("ddpomdp.envs")
        sources = {name: points[name].value.partition(":")[0] if name in points else "" for name in ddpomdp.list_envs()}
        if self.as_json:
            print(json.dumps([{"id": name, "module": module} for name, module in sources.items()], indent=1))
        else:
            print_table(("environment", "from"), list(sources.items()))
        return 0


@dataclass(frozen=True)
class Play:
    """Run one episode and print what came of it; key=value words are options of the environment, policy.KEY=value words
    those of the policy.

    Example: ddpomdp play Search-v0 --policy swarm --seed 3 --plot swarm.png model=weak policy.n=8
    """

    env: Annotated[Positional[str], arg(metavar="ENV")]
    """Environment, see `ddpomdp envs`."""
    policy: str = "random"
    """Policy: random, or one of the environment's own; an unknown name lists them."""
    preset: str | None = None
    """Preset that fills the options."""
    seed: int = 0
    """Seed of task, luck and policy, from 0."""
    ticks: int | None = None
    """Most ticks to run; the environment's horizon if not given."""
    plot: Path | None = None
    """Draw the trace to this file, .png or .svg."""
    save: Path | None = None
    """Write the trace to this file, .json; `ddpomdp trace` reads it."""
    as_json: Annotated[bool, arg(name="json")] = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Play the episode."""
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"seed {self.seed}; allowed: integers from 0 to 2^32 - 1")
        if self.ticks is not None and self.ticks < 1:
            raise UsageError(f"ticks {self.ticks}; allowed: integers from 1")
        if self.preset and "preset" in options:
            raise UsageError(f"got --preset {self.preset} and preset={options['preset']}; allowed: one of the two")
        of_policy = options.pop("policy", {})
        if not isinstance(of_policy, dict):
            raise UsageError(f"got policy={of_policy!r}; the policy is named by --policy, its options policy.KEY=value")
        if self.plot:
            self._check_plot(self.plot)
        if self.save:
            trace_commands.check_save(self.save)
        import jax

        import ddpomdp
        from ddpomdp.bench import episode
        from ddpomdp.progress import waiting

        preset = {"preset": self.preset} if self.preset else {}
        with bad_input():
            env = ddpomdp.make(self.env, **preset, **options)
            policy = ddpomdp.policy(self.policy, env, **of_policy)
            params = policy.init(env)
        began = time.perf_counter()
        with waiting("compiling and playing"):
            ticks = min(self.ticks or env.spec.max_ticks, env.spec.max_ticks)
            key = jax.random.key(self.seed)
            played = episode.play(env, policy, params, key[None], env.params, ticks)
            (row,) = episode.rows(played)
        took_s = time.perf_counter() - began
        title = f"{self.env}, {self.policy}, seed {self.seed}"
        if self.plot:
            episode.draw(played, env, path=self.plot, title=title)
        if self.save:
            from ddpomdp.trace import Trace

            Trace.from_played(env, played, key, policy=self.policy).save(self.save)
        if self.as_json:
            what = {"env": self.env, "policy": self.policy, "seed": self.seed}
            print(json.dumps({**what, **row}, indent=1, allow_nan=False))
        else:
            print_table((title, ""), [*_summary(row), ("computed in", f"{took_s:.1f} s")])
        return 0

    @staticmethod
    def _check_plot(path: Path) -> None:
        """Refuse, before anything is computed, a picture that could not be written."""
        if path.suffix.lower() not in (".png", ".svg"):
            raise UsageError(f"plot {path}; allowed: a file that ends in .png or .svg")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"cannot write {path}: no folder {path.absolute().parent}")
        if importlib.util.find_spec("matplotlib") is None:
            raise UsageError("a picture needs matplotlib: pip install 'ddpomdp[plot]'")


@dataclass(frozen=True)
class Bench:
    """Run a benchmark suite into a folder: raw rows, results.json, report.html; key=value words are its options.

    Example: ddpomdp bench quick --out runs/quick --jobs 2 seeds=[0,1,2]
    """

    suite: Annotated[Positional[str], arg(metavar="SUITE")]
    """Suite; an unknown name lists the known ones."""
    out: Path | None = None
    """Folder; the first free of runs/SUITE, runs/SUITE-2, ... if not given."""
    resume: bool = False
    """Go on with the run in the folder: the cells that are missing or failed."""
    jobs: int = 1
    """Cells at a time, each in a process of its own."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Run the suite."""
        from ddpomdp import bench
        from ddpomdp.bench.run import run

        suite = bench.find(self.suite)
        folder = self.out or self._default_folder()
        code = run(suite, folder, options, resume=self.resume, jobs=self.jobs)
        if code in (0, 1):
            _print_results(folder, suite)
            print(folder / "results.json")
            if (folder / "report.html").exists():
                print(folder / "report.html")
        return code

    def _default_folder(self) -> Path:
        first, *others = (Path("runs") / name for name in (self.suite, *(f"{self.suite}-{n}" for n in range(2, 1000))))
        if self.resume:
            if taken := [str(path) for path in others if path.exists()]:
                raise UsageError(f"several runs of {self.suite}: {first}, {', '.join(taken)}; name one with --out")
            return first
        return next(path for path in (first, *others) if not path.exists())


@dataclass(frozen=True)
class Report:
    """Rebuild results.json and report.html of a run from its raw rows, or check results.json against them.

    A .csv file in place of the folder is a leaderboard: it is checked line by line.

    Example: ddpomdp report runs/quick --check
    """

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """Folder of a run, or with --check a leaderboard.csv."""
    check: bool = False
    """Only compare: exit code 1 and one line per difference if any number, key or cell differs."""
    leaderboard: Path | None = None
    """Put the run's lines into this .csv file, in place of earlier ones of the same keys."""
    submitter: str = "ddpomdp"
    """Whose lines they are."""
    as_json: Annotated[bool, arg(name="json")] = False
    """Print results.json, or with --check the differences, as JSON."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Rebuild or check."""
        from ddpomdp.bench import find, leaderboard, report, results, store

        _no_options("report", options)
        if self.check and self.leaderboard:
            raise UsageError("--check and --leaderboard at once; allowed: one of them")
        if self.folder.suffix == ".csv":
            if not self.check:
                raise UsageError(f"{self.folder} is a leaderboard; allowed: --check")
            return self._checked(leaderboard.check(self.folder), "every number follows from its seeds")
        run = store.read(self.folder)
        suite = find(run.run["suite"])
        if self.check:
            return self._checked(results.check(run, suite), "every number follows from the raw rows")
        if self.leaderboard:
            return self._enter(run, suite, self.leaderboard)
        with store.hold(self.folder) as held:
            path = report.rebuild(held, suite)
        print((self.folder / results.FILE).read_text("utf-8") if self.as_json else path)
        return 0

    def _checked(self, problems: list[str], fine: str) -> int:
        if self.as_json:
            print(json.dumps({"ok": not problems, "differences": problems}, indent=1))
        else:
            print("\n".join(problems) if problems else f"{self.folder}: {fine}")
        return 1 if problems else 0

    def _enter(self, run: Any, suite: Any, path: Path) -> int:
        from ddpomdp.bench import leaderboard, results

        if path.suffix != ".csv" or not path.absolute().parent.is_dir():
            raise UsageError(f"leaderboard {path}; allowed: a file that ends in .csv in a folder that exists")
        if problems := results.check(run, suite):
            raise UsageError(f"{self.folder}: {problems[0]}; ddpomdp report {self.folder} --check lists all")
        with bad_input():
            lines = leaderboard.lines_of(run.run, results.compute(run, suite)["analysis"], self.submitter)
        old = leaderboard.read(path) if path.exists() else []
        leaderboard.write(path, leaderboard.merged(old, lines))
        print(f"{path}: {len(lines)} lines of {self.submitter}")
        return 0


@dataclass(frozen=True)
class Check:
    """Put an environment to the conformance suite, one line per rule; key=value words are options of the environment.

    Exit code 0 if no rule is broken, 1 if one is. What did not happen in the episodes is "not exercised".

    Example: ddpomdp check Search-v0 preset=tiny max_turns=45
    """

    env: Annotated[Positional[str], arg(metavar="ENV")]
    """Environment, see `ddpomdp envs`."""
    episodes: int = 12
    """Episodes to play."""
    ticks: int = 320
    """Most ticks of an episode; the end of one that is cut is not exercised."""
    seed: int = 0
    """Seed of tasks, luck and turns, from 0."""
    thorough: bool = False
    """Also the checks that take long: steps without compilation."""
    as_json: Annotated[bool, arg(name="json")] = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Run the checks."""
        import ddpomdp
        from ddpomdp.progress import waiting
        from ddpomdp.testing import run_checks

        with bad_input():
            env = ddpomdp.make(self.env, **options)
        with waiting("compiling and checking"):
            results = run_checks(
                env, episodes=self.episodes, max_ticks=self.ticks, seed=self.seed, thorough=self.thorough
            )
        counts = Counter(result.status for result in results)
        if self.as_json:
            what = {"env": self.env, "ok": not counts["fail"], "checks": [asdict(result) for result in results]}
            print(json.dumps(what, indent=1))
        else:
            for result in results:
                said = f": {result.said}" if result.said else ""
                print(f"{result.status:<14} {result.name:<26} {result.about}{said}")
            print(f"{self.env}: {len(results)} rules, " + ", ".join(f"{n} {status}" for status, n in counts.items()))
        return 1 if counts["fail"] else 0


VERBS: dict[str, Any] = {
    "envs": Envs,
    "play": Play,
    "bench": Bench,
    "report": Report,
    "trace": trace_commands.VERBS,
    "credit": Worth,
    "check": Check,
}


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line `args` (default: those of the process) and return its exit code.

    0 done, 1 failed, 2 bad input (one line on standard error), 130 Ctrl-C. DDPOMDP_DEBUG=1 shows tracebacks.
    """
    try:
        code = _dispatch(list(sys.argv[1:] if args is None else args))
        sys.stdout.flush()
        return code or 0
    except UsageError as error:
        _debug()
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        _debug()
        return _complain(f"{type(error).__name__}: {error} (DDPOMDP_DEBUG=1 shows where)", 1)


def _dispatch(words: list[str]) -> int | None:
    verbs: Mapping[str, Any] = VERBS
    path = ["ddpomdp"]
    while True:
        name = words[0] if words else None
        others = plugins.found(GROUP) if len(path) == 1 and name not in verbs else {}
        if name is None:
            raise UsageError(f"no command given (allowed: {', '.join([*verbs, *others])}); see {' '.join(path)} --help")
        if name in ("-h", "--help"):
            print(_help(path, verbs, others))
            return 0
        if name == "--version" and len(path) == 1:
            print(__version__)
            return 0
        if name not in verbs and name not in others:
            raise UsageError(refusal("command", name, [*verbs, *others]))
        verb = verbs[name] if name in verbs else plugins.load(GROUP, name, "command")
        path.append(name)
        words = words[1:]
        if not isinstance(verb, Mapping):
            return _call(verb, " ".join(path), words)
        verbs = verb


def _call(verb: Any, prog: str, words: list[str]) -> int | None:
    """Parse `words` into the dataclass `verb` and its options, then run it."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            command, rest = tyro.cli(
                verb,
                prog=prog,
                args=words,
                return_unknown_args=True,
                config=_TYRO,
            )
    except SystemExit as end:
        if not end.code:
            return 0
        raise UsageError(f"{_unboxed(complaint.getvalue())}; see {prog} --help") from None
    for word in rest:
        if word.startswith("-"):
            raise UsageError(refusal(f"option of {prog}", word.partition("=")[0], _flags(verb)))
    return command(parse_options(rest))


def _flags(verb: Any) -> list[str]:
    """The flags of `verb`, from its help text."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(verb, args=["--help"], config=_TYRO)
    return sorted(set(re.findall(r"--[a-z][\w-]*", text.getvalue())))


def _help(path: list[str], verbs: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    lines = [f"usage: {' '.join(path)} COMMAND ...   ({' '.join(path)} COMMAND --help says more)", ""]
    if len(path) == 1:
        lines.insert(0, f"ddpomdp {__version__}: environments for teams of LLM agents, their policies and benchmarks\n")
    width = max(map(len, (*verbs, *others)), default=0) + 2
    for name, verb in verbs.items():
        text = "sub-commands: " + ", ".join(verb) if isinstance(verb, Mapping) else (verb.__doc__ or "").strip()
        about, _, example = text.partition("Example:")
        lines.append(f"  {name:<{width}}{' '.join(about.split())}")
        lines += [f"  {'':<{width}}$ {example.strip()}"] if example else []
    lines += [f"  {name:<{width}}from {point.value.partition(':')[0]}" for name, point in others.items()]
    return "\n".join(lines)


def _unboxed(text: str) -> str:
    """The message inside tyro's box, in one line."""
    lines = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
    end = next((i for i, line in enumerate(lines) if line.startswith("──")), len(lines))
    return " ".join(" ".join(lines[:end]).split()) or " ".join(text.split())


def _no_options(verb: str, options: Mapping[str, Any]) -> None:
    if options:
        raise UsageError(f"{verb} takes no key=value options, got {', '.join(options)}")


def _summary(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An episode's row as lines of a table; the calls by kind in one line, counters that stayed 0 left out."""
    lines = []
    for key, value in row.items():
        if isinstance(value, int) and value == 0:
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {count}" for name, count in value.items() if count) or "none"
        elif isinstance(value, float):
            value = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        elif isinstance(value, int):
            value = f"{value:,}"
        lines.append((key.replace("_", " "), str(value)))
    return lines


def _print_results(folder: Path, suite: Any) -> None:
    """The tables of a run's report, without its pictures."""
    from ddpomdp.bench import results, store, strictjson
    from ddpomdp.bench.report import headline, mean_and_half, number

    run = store.read(folder)
    numbers = strictjson.loads((folder / results.FILE).read_text("utf-8"))
    columns = [f"{metric.title}{f', {metric.unit}' if metric.unit else ''}" for metric in suite.metrics]
    for table in headline(numbers["table"], suite.metrics, suite.group_by):
        lines = []
        for line in table["lines"]:
            measures = [mean_and_half(line["metrics"][metric.key]) for metric in suite.metrics]
            shown = [" ± ".join(filter(None, measure)) for measure in measures]
            lines.append([str(line["name"]), *shown, f"{line['score']['seeds']}", f"{line['score']['episodes']:,}"])
        print_table((table["title"] or suite.name, *columns, "seeds", "episodes"), lines)
        print()
    rows = [row for cell in numbers["cells"] for row in run.rows(cell)]
    for section in suite.sections(rows, numbers) if rows else ():
        for table in section.tables:
            print(section.title)
            shown = [[number(x) if isinstance(x, int | float) else str(x) for x in line] for line in table.rows]
            print_table(table.columns, shown)
            print()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print lines of text under their columns."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(Text(title), no_wrap=True) for title in columns), box=None, pad_edge=False)
    table.header_style = "bold"
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal:  # a file has no width to keep to
        console.width = 250
    console.print(table)


def _complain(text: str, code: int) -> int:
    """Print `text` as one line, its control characters shown, and return `code`."""
    shown = "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text)
    print(f"ddpomdp: {' '.join(shown.split())}", file=sys.stderr)
    return code


def _debug() -> None:
    if os.environ.get("DDPOMDP_DEBUG") == "1":
        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
