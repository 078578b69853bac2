"""The leaderboard of credit estimators: a CSV file to which anyone can add lines, and what a line must hold.

A line is one estimator at one kind of decision of one world. Its key is `KEY`; whoever submits chooses `submitter`. It
holds the value of every seed, so that mean and 95% interval of each number can be recomputed by anyone.
"""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpomdp.bench import strictjson
from ddpomdp.bench.stats import summarise
from ddpomdp.options import UsageError, refusal

KEY = ("submitter", "estimator", "env", "topology", "decision")
NUMBERS = ("rank_correlation", "squared_error", "bias", "variance", "ticks")
MADE_WITH = ("env_version", "harness", "ddpomdp", "jax", "numpy")
COLUMNS = (
    *KEY,
    *(f"{name}{part}" for name in NUMBERS for part in ("", "_low", "_high")),
    "seeds",  # joined by spaces, as are the values below
    *(f"{name}_per_seed" for name in NUMBERS),
    "contexts",  # per seed
    "truth_reliable",
    *MADE_WITH,
)
DIGITS = 9  # of every number
SEEDS = 3  # at least


def lines_of(run: Mapping[str, Any], analysis: Mapping[str, Any], submitter: str) -> list[dict[str, str]]:
    """Lines of a run of a suite whose analysis has a `leaderboard`, as the suite `credit` has.

    Args:
      run: run.json.
      analysis: of results.json.
      submitter: whose lines they are.

    Raises:
      ValueError: no leaderboard in the analysis, or a name that cannot stand in the file.
    """
    if not submitter or submitter != submitter.strip() or not submitter.isprintable():
        raise UsageError(f"submitter: got {submitter!r}, allowed: a name of printable characters")
    if "leaderboard" not in analysis:
        raise UsageError(f"suite {run['suite']!r} gives no leaderboard; allowed: a run of suite 'credit', or its like")
    contexts, made = {}, {}
    for cell in run["cells"].values():
        env = cell["settings"]["env"]
        where = env, cell["settings"]["topology"]
        contexts[where] = cell["settings"]["contexts"]
        made[where] = {
            "env_version": cell["provenance"][f"{env} version"],
            "harness": cell["provenance"][f"{env} harness"],
        }
    versions = {name: run["versions"][name] for name in ("ddpomdp", "jax", "numpy")}
    lines = []
    for entry in analysis["leaderboard"]:
        where = entry["env"], entry["topology"]
        line = {"submitter": submitter, **{name: entry[name] for name in KEY[1:]}}
        line["seeds"] = " ".join(entry["rank_correlation"]["per_seed"])
        for name in NUMBERS:
            line |= _number(name, [entry[name]["per_seed"][seed] for seed in entry["rank_correlation"]["per_seed"]])
        line |= {"contexts": str(contexts[where]), "truth_reliable": _text(entry["truth_reliable"])}
        lines.append({**line, **made[where], **versions})
    return lines


def _number(name: str, values: list[float]) -> dict[str, str]:
    """The columns of one number."""
    rounded = [float(_text(value)) for value in values]
    found = summarise(dict(enumerate([value] for value in rounded)))
    columns = {name: found["mean"], f"{name}_low": found["low"], f"{name}_high": found["high"]}
    shown = {column: _text(value) for column, value in columns.items()}
    return {**shown, f"{name}_per_seed": " ".join(map(_text, rounded))}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}"


def merged(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[str, str]]:
    """Old lines with those of the same keys replaced, in order of world, decision and rank correlation."""
    by_key = {tuple(line[name] for name in KEY): line for line in [*old, *new]}
    order = lambda line: (line["env"], line["topology"], line["decision"], -float(line["rank_correlation"] or 0))  # noqa: E731
    return sorted(by_key.values(), key=order)


def write(path: Path, lines: list[dict[str, str]]) -> None:
    """Write the file, whole or not at all."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    strictjson.write_atomic(path, out.getvalue())


def read(path: Path) -> list[dict[str, str]]:
    """The lines; `UsageError` where the file or its header cannot be used."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    reader = csv.DictReader(io.StringIO(text), strict=True, restkey="", restval="")
    try:
        lines = list(reader)
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num}: {error}") from None
    found = reader.fieldnames or []
    if list(found) != list(COLUMNS):
        lacking = [name for name in COLUMNS if name not in found]
        odd = [name for name in found if name not in COLUMNS]
        what = ", ".join([*(f"lacks {x}" for x in lacking), *(f"has {x!r}" for x in odd)]) or "columns in another order"
        raise UsageError(f"{path}: {what}; allowed: {', '.join(COLUMNS)}")
    return lines


def check(path: Path) -> list[str]:
    """What is wrong with the lines: keys, seeds, versions, numbers that do not follow from their seeds."""
    lines, problems, seen = read(path), [], {}
    if not lines:
        return ["no line"]
    for number, line in enumerate(lines, 2):
        say = lambda text, number=number: problems.append(f"line {number}: {text}")  # noqa: E731
        if "" in line:
            say("more values than columns")
            continue
        key = tuple(line[name] for name in KEY)
        if key in seen:
            say(f"the key {', '.join(key)} of line {seen[key]} again")
        seen.setdefault(key, number)
        for name in (*KEY, *MADE_WITH):
            if not line[name].strip():
                say(f"{name} is empty")
        _check_made_with(line, say)
        _check_numbers(line, say)
    return problems


def _check_made_with(line: Mapping[str, str], say: Any) -> None:
    """The world exists here in that version, and has such a topology's harness digest."""
    version = _installed(line["env"])
    if version is None:
        from ddpomdp.registry import list_envs

        say(refusal("env", line["env"], list_envs()))
    elif version != line["env_version"]:
        say(f"env_version {line['env_version']}; {line['env']} is {version} here: measure again")
    if len(line["harness"]) < 8 or set(line["harness"]) - set("0123456789abcdef"):
        say(f"harness {line['harness']!r}; allowed: the digest of the environment's harness")


def _installed(env: str) -> str | None:
    """The version of an environment of this installation."""
    from ddpomdp.registry import list_envs, make

    return str(make(env).version) if env in list_envs() else None


def _check_numbers(line: Mapping[str, str], say: Any) -> None:
    """Each mean and interval follows from its values by seed."""
    seeds = line["seeds"].split()
    if len(seeds) < SEEDS or len(set(seeds)) < len(seeds) or not all(seed.isdecimal() for seed in seeds):
        say(f"seeds {line['seeds']!r}; allowed: {SEEDS} different integers from 0 at least, joined by spaces")
        return
    for name in NUMBERS:
        values = _values(line[f"{name}_per_seed"])
        if values is None or len(values) != len(seeds):
            say(f"{name}_per_seed {line[f'{name}_per_seed'][:60]!r}; allowed: {len(seeds)} numbers, one per seed")
            continue
        for column, text in _number(name, values).items():
            got, want = _values(line[column]), _values(text)
            if got is None or want is None or len(got) != len(want) or not all(map(_close, got, want)):
                say(f"{column} {line[column][:60] or 'is empty'}, from its seeds {text or 'nothing'}")
        low, high = {"rank_correlation": (-1.0, 1.0), "bias": (-math.inf, math.inf)}.get(name, (0.0, math.inf))
        if not all(low <= value <= high for value in values):
            say(f"{name}_per_seed: allowed: numbers from {low:g} to {high:g}")
    if not line["contexts"].isdecimal() or int(line["contexts"]) < 8:
        say(f"contexts {line['contexts']!r}; allowed: integers from 8")
    reliable = _values(line["truth_reliable"])
    if reliable is None or len(reliable) != 1 or not 0 <= reliable[0] <= 1:
        say(f"truth_reliable {line['truth_reliable']!r}; allowed: a number from 0 to 1")


def _values(text: str) -> list[float] | None:
    """Finite numbers joined by spaces; None where one is none."""
    try:
        values = [float(word) for word in text.split()]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def _close(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-9)
