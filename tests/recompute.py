"""Recompute the headline numbers of results.json from the raw rows, sharing no code with ddpomdp.

Usage: python tests/recompute.py DIR    (exit code 1 and a line per number that differs)
"""

import json
import math
import statistics
import sys
from pathlib import Path

T_975 = [12.70620474, 4.30265273, 3.18244631, 2.77644511, 2.57058184, 2.44691185, 2.36462425, 2.30600414, 2.26215716]

folder = Path(sys.argv[1])
results = json.loads((folder / "results.json").read_text("utf-8"))
lines = [line for path in (folder / "rows").glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
rows = [json.loads(line) for line in lines]
wrong, compared = [], 0
for entry in results["table"]:
    ours = [row for row in rows if all(row.get(key) == value for key, value in entry["group"].items())]
    for metric, stated in entry["metrics"].items():
        by_seed = {}
        for row in ours:
            if row[metric] is not None:
                by_seed.setdefault(row["seed"], []).append(row[metric])
        means = [statistics.fmean(values) for values in by_seed.values()]
        expected = {"mean": statistics.fmean(means), "seeds": len(means), "episodes": sum(map(len, by_seed.values()))}
        if len(means) > 1 and len(set(means)) > 1:
            half = T_975[len(means) - 2] * statistics.stdev(means) / math.sqrt(len(means))
            expected |= {"low": expected["mean"] - half, "high": expected["mean"] + half}
        for key, value in expected.items():
            compared += 1
            if stated[key] is None or not math.isclose(stated[key], value, rel_tol=1e-9):
                wrong.append(f"{entry['group']} {metric} {key}: stated {stated[key]}, from the rows {value}")
print("\n".join(wrong) or f"{compared} numbers agree")
sys.exit(bool(wrong) or not compared)
