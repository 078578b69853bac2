"""results.json: every number of the report, computed from the raw rows and run.json alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddpomdp.bench import strictjson
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.store import Store
from ddpomdp.bench.suite import Row, Suite

FILE = "results.json"


def measured(settings: Mapping[str, Any], group_by: Sequence[str]) -> bool:
    """Whether a cell with these settings belongs to the headline tables."""
    return all(key in settings for key in group_by)


def compute(store: Store, suite: Suite) -> dict[str, Any]:
    """The content of results.json. Cells that are not done are listed under `missing`, failed ones also with why."""
    done, failures = store.done(), store.failures()
    rows_by_cell = {cell: store.rows(cell) for cell in store.run["cells"] if cell in done}
    rows = [row for rows in rows_by_cell.values() for row in rows]
    results = {
        "suite": store.run["suite"],
        "options": store.run["options"],
        "versions": store.run["versions"],
        "cells": {cell: {"rows": len(rows), "sha256": store.digest(cell)} for cell, rows in rows_by_cell.items()},
        "missing": [cell for cell in store.run["cells"] if cell not in done],
        "failed": {cell: failure["error"] for cell, failure in failures.items() if cell not in done},
        "table": table(rows, store.run["group_by"], store.run["metrics"]),
        "analysis": suite.analyse(rows) if rows else {},
    }
    return strictjson.strict(results)


def table(rows: Sequence[Row], group_by: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per combination of `group_by`, in order of appearance: `group` and `metrics` {key: summary}."""
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not measured(row, group_by):
            continue
        group = {key: row[key] for key in group_by}
        entry = groups.setdefault(strictjson.dumps(group), {"group": group, "values": {key: {} for key in metrics}})
        for key in metrics:
            entry["values"][key].setdefault(row["seed"], []).append(row[key])
    return [
        {"group": entry["group"], "metrics": {key: summarise(values) for key, values in entry["values"].items()}}
        for entry in groups.values()
    ]


def write(store: Store, suite: Suite) -> dict[str, Any]:
    """Compute results.json, write it, and return it."""
    results = compute(store, suite)
    strictjson.write_atomic(store.folder / FILE, strictjson.dumps(results, indent=1) + "\n")
    return results


def check(store: Store, suite: Suite) -> list[str]:
    """What is wrong with results.json: cells not done, and each place that differs from a recomputation (1e-9)."""
    path = store.folder / FILE
    try:
        stored = strictjson.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return [f"{FILE} is missing"]
    except ValueError as error:
        return [f"{FILE}: {error}"]
    fresh = strictjson.loads(strictjson.dumps(compute(store, suite)))
    missing = [f"cell {cell}: no rows" for cell in fresh["missing"]]
    return missing + strictjson.differences(stored, fresh, tolerance=1e-9)
