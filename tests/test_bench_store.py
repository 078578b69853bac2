import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests" / "fakes"
CELLS = 10  # of the suite `fake`: 3 policies x 3 seeds, and a training run


def command(*words, **environment):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "envs", ROOT / "baselines", FAKES)))
    return {
        "args": [sys.executable, "-m", "ddpomdp.cli", *map(str, words)],
        "env": {**os.environ, "PYTHONPATH": path, **{key: str(value) for key, value in environment.items()}},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def ddpomdp(*words, **environment):
    return subprocess.run(**command(*words, **environment), timeout=120)


def start(*words, **environment):
    return subprocess.Popen(**command(*words, **environment))


def row_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "rows").glob("*.jsonl")}


def strict_loads(text):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited 30 s in vain")


def test_one_run_and_its_independent_recomputation(tmp_path):
    done = ddpomdp("bench", "fake", "--out", tmp_path / "a run")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert len(row_files(tmp_path / "a run")) == CELLS
    results = strict_loads((tmp_path / "a run" / "results.json").read_text("utf-8"))
    assert len(results["table"]) == 3
    assert results["analysis"] == {"last_return": 0.4, "episodes": 3 * 3 * 4 + 5}
    recomputed = subprocess.run(
        [sys.executable, ROOT / "tests" / "recompute.py", tmp_path / "a run"], capture_output=True, text=True
    )
    assert (recomputed.returncode, recomputed.stdout) == (0, "30 numbers agree\n")


def test_rows_are_strict_json_with_flags(tmp_path):
    assert ddpomdp("bench", "fake", "--out", tmp_path).returncode == 0
    for name, data in row_files(tmp_path).items():
        for episode, line in enumerate(data.decode().splitlines()):
            row = strict_loads(line)
            assert (row["cell"], row["episode"]) == (name.removesuffix(".jsonl"), episode)
    first, second, *_ = map(strict_loads, (tmp_path / "rows" / "Fake-v0.random.s0.jsonl").read_text().splitlines())
    assert (first["quality"], first["nonfinite"]) == (None, {"quality": "nan"})
    assert second["nonfinite"] == {"extra.worst.0": "inf", "extra.worst.1": "-inf"}
    quality = strict_loads((tmp_path / "results.json").read_text())["table"][0]["metrics"]["quality"]
    assert (quality["missing"], quality["episodes"]) == (1, 11)


def test_kill_at_random_moments_and_resume(tmp_path):
    """Ten kills; no row torn, none changed once written, and the end equals that of an unbroken run."""
    assert ddpomdp("bench", "fake", "--out", tmp_path / "whole", "sleep_s=0.05").returncode == 0
    rng = random.Random(0)
    folder = tmp_path / "killed"
    seen, in_the_middle = {}, 0
    for _ in range(10):
        process = start("bench", "fake", "--out", folder, "--resume", "sleep_s=0.05")
        soon = time.monotonic() + 5  # to start takes longer on a busy machine
        while process.poll() is None and time.monotonic() < soon and len(row_files(folder)) <= len(seen):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.2))
        process.kill()
        process.communicate()
        now = row_files(folder)
        assert {name: now.get(name) for name in seen} == seen
        assert all(strict_loads(line) for data in now.values() for line in data.decode().splitlines())
        seen = now
        in_the_middle += 0 < len(seen) < CELLS
    assert in_the_middle > 0
    assert ddpomdp("bench", "fake", "--out", folder, "--resume", "sleep_s=0.05").returncode == 0
    assert row_files(folder) == row_files(tmp_path / "whole")
    assert (folder / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()
    assert not list(folder.rglob("*.tmp"))


def test_jobs_give_the_same_bytes(tmp_path):
    assert ddpomdp("bench", "fake", "--out", tmp_path / "one").returncode == 0
    assert ddpomdp("bench", "fake", "--out", tmp_path / "two", "--jobs", 2).returncode == 0
    assert (tmp_path / "one" / "results.json").read_bytes() == (tmp_path / "two" / "results.json").read_bytes()


@pytest.mark.parametrize("options", [("sleep_s=0.1", "sleep_s=0.1"), ("sleep_s=0.1", "sleep_s=0.11")])
def test_two_processes_on_one_folder(tmp_path, options):
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        pair = [start("bench", "fake", "--out", folder, option) for option in options]
        ends = [(process.communicate(timeout=120)[1], process.returncode, process.pid) for process in pair]
        (_, _, winner), (refused, code, _) = sorted(ends, key=lambda end: end[1])
        assert sorted(end[1] for end in ends) == [0, 2]
        assert (code, len(refused.splitlines())) == (2, 1)
        assert f"in use by process {winner} on host {socket.gethostname()}" in refused
        assert len(row_files(folder)) == CELLS


def test_lock_of_killed_holder_and_of_another_machine(tmp_path):
    holder = start("bench", "fake", "--out", tmp_path, "sleep_s=0.3")
    wait_for(lambda: row_files(tmp_path))
    refused = ddpomdp("bench", "fake", "--out", tmp_path, "--resume", "sleep_s=0.3")
    assert (refused.returncode, f"process {holder.pid} on host" in refused.stderr) == (2, True)
    assert ddpomdp("report", tmp_path).returncode == 2
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    (tmp_path / ".lock").write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    assert ddpomdp("bench", "fake", "--out", tmp_path, "--resume", "sleep_s=0.3").returncode == 0


def test_workers_end_with_their_killed_parent(tmp_path):
    parent = start("bench", "fake", "--out", tmp_path, "--jobs", 2, "sleep_s=0.3")
    wait_for(lambda: row_files(tmp_path))
    parent.kill()
    parent.communicate(timeout=20)  # returns once nobody holds the pipes, so once the workers are gone
    resumed = ddpomdp("bench", "fake", "--out", tmp_path, "--jobs", 2, "--resume", "sleep_s=0.3")
    assert (resumed.returncode, len(row_files(tmp_path))) == (0, CELLS)


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupt_says_how_to_go_on(tmp_path, jobs):
    process = start("bench", "fake", "--out", tmp_path / "x y", "--jobs", jobs, "sleep_s=0.3")
    wait_for(lambda: row_files(tmp_path / "x y"))
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in text) == (130, False)
    assert f"ddpomdp bench fake --out '{tmp_path}/x y' --jobs {jobs} sleep_s=0.3 --resume" in text


def test_changed_run_is_refused_with_differences(tmp_path):
    assert ddpomdp("bench", "fake", "--out", tmp_path).returncode == 0
    before = row_files(tmp_path)
    again = ddpomdp("bench", "fake", "--out", tmp_path)
    assert (again.returncode, "--resume continues it" in again.stderr) == (2, True)
    other = ddpomdp("bench", "fake", "--out", tmp_path, "--resume", "episodes=5")
    assert (other.returncode, "options.episodes: 4 -> 5" in other.stderr) == (2, True)
    version = ddpomdp("bench", "fake", "--out", tmp_path, "--resume", FAKE_VERSION=1)
    assert (version.returncode, "provenance.env version: '0' -> '1'" in version.stderr) == (2, True)
    run = json.loads((tmp_path / "run.json").read_text())
    run["versions"]["jax"] = "0.0.1"
    (tmp_path / "run.json").write_text(json.dumps(run))
    package = ddpomdp("bench", "fake", "--out", tmp_path, "--resume")
    assert (package.returncode, "versions.jax: '0.0.1' -> " in package.stderr) == (2, True)
    assert all(len(end.stderr.splitlines()) == 1 for end in (again, other, version, package))
    assert row_files(tmp_path) == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_failing_cells_are_recorded_and_only_they_are_tried_again(tmp_path, jobs):
    state, folder = tmp_path / "state", tmp_path / "run"
    state.mkdir()
    first = ddpomdp("bench", "broken", "--out", folder, "--jobs", jobs, FAKE_BROKEN=state)
    assert (first.returncode, "Traceback" in first.stderr) == (1, False)
    assert set(row_files(folder)) == {f"c{n}.jsonl" for n in (0, 2, 3, 5)}
    failure = json.loads((folder / "failures" / "c1.json").read_text())
    assert failure["error"].startswith("RuntimeError: cell 1") and "broken_run" in failure["traceback"]
    assert set(json.loads((folder / "results.json").read_text())["failed"]) == {"c1", "c4"}
    (state / "mended").touch()
    assert ddpomdp("bench", "broken", "--out", folder, "--resume", "--jobs", jobs, FAKE_BROKEN=state).returncode == 0
    runs = [path.name.split("-")[1] for path in state.glob("ran-*")]
    assert {cell: runs.count(cell) for cell in runs} == {"c0": 1, "c1": 2, "c2": 1, "c3": 1, "c4": 2, "c5": 1}
    assert not list((folder / "failures").iterdir())
    assert ddpomdp("report", folder, "--check").returncode == 0


def test_killed_workers_are_replaced_and_named(tmp_path):
    state, folder = tmp_path / "state", tmp_path / "run"
    state.mkdir()
    for name in ("mended", "killers", "always"):
        (state / name).touch()
    end = ddpomdp("bench", "broken", "--out", folder, "--jobs", 2, FAKE_BROKEN=state)
    assert end.returncode == 1
    assert set(row_files(folder)) == {f"c{n}.jsonl" for n in (0, 1, 2, 4, 5)}
    failure = json.loads((folder / "failures" / "c3.json").read_text())
    assert (failure["attempts"], "SIGKILL (out of memory?)" in failure["error"]) == (3, True)


def test_report_check_finds_every_kind_of_damage(tmp_path):
    assert ddpomdp("bench", "fake", "--out", tmp_path).returncode == 0
    assert ddpomdp("report", tmp_path, "--check").returncode == 0
    good = (tmp_path / "results.json").read_text()
    rows = tmp_path / "rows" / "Fake-v0.learned.s1.jsonl"
    good_rows = rows.read_text()

    def problems():
        end = ddpomdp("report", tmp_path, "--check", "--json")
        assert end.returncode == 1
        return " ".join(json.loads(end.stdout)["differences"])

    changed = json.loads(good)
    changed["table"][1]["metrics"]["tokens"]["high"] *= 1 + 1e-6
    del changed["analysis"]["last_return"]
    (tmp_path / "results.json").write_text(json.dumps(changed))
    assert re.search(r"table\.1\.metrics\.tokens\.high: .* analysis\.last_return: absent -> 0\.4", problems())
    (tmp_path / "results.json").write_text(good)
    rows.write_text(good_rows.replace('"tokens": ', '"tokens": 1', 1))
    assert "sha256" in problems()
    rows.unlink()
    assert "cell Fake-v0.learned.s1: no rows" in problems()
    rows.write_text(good_rows[:-20])
    torn = ddpomdp("report", tmp_path, "--check")
    assert (torn.returncode, "Fake-v0.learned.s1.jsonl line 4" in torn.stderr) == (2, True)
    rows.write_text(good_rows)
    (tmp_path / "results.json").unlink()
    assert "results.json is missing" in problems()
    assert ddpomdp("report", tmp_path).returncode == 0
    assert (tmp_path / "results.json").read_text() == good


def test_report_is_one_safe_file(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    assert ddpomdp("bench", "fake", "--out", tmp_path / "fake").returncode == 0
    assert ddpomdp("bench", "broken", "--out", tmp_path / "broken", FAKE_BROKEN=state).returncode == 1
    for name in ("fake", "broken"):
        page = (tmp_path / name / "report.html").read_text("utf-8")
        assert "<script" not in page and "<b>and</b>" not in page and "<i>last" not in page
        assert not re.search(r"(src|href|srcset)=\"(?!data:)", page)
    assert "one seed" not in (tmp_path / "fake" / "report.html").read_text()


def test_foreign_folder_and_unwritable_path_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    foreign = ddpomdp("bench", "fake", "--out", tmp_path)
    assert (foreign.returncode, "holds other files (thesis.tex)" in foreign.stderr) == (2, True)
    file = ddpomdp("bench", "fake", "--out", tmp_path / "thesis.tex" / "run")
    assert (file.returncode, len(file.stderr.splitlines())) == (2, 1)


def test_resume_decision_of_ten_thousand_cells(tmp_path):
    from ddpomdp.bench import store
    from ddpomdp.bench.suite import Cell, Suite

    cells = [Cell(f"c{n}", n, {"env": "E", "policy": "p"}) for n in range(10_000)]
    suite = Suite("many", "", lambda options: cells, lambda cell: [])
    (tmp_path / "rows").mkdir()
    for cell in cells[:-1]:
        (tmp_path / "rows" / f"{cell.id}.jsonl").touch()
    (tmp_path / "failures").mkdir()
    with store.begin(tmp_path, store.describe(suite, {}, cells), resume=False):
        pass
    began = time.monotonic()
    with store.begin(tmp_path, store.describe(suite, {}, cells), resume=True) as opened:
        assert len(opened.done()) == 9_999
    assert time.monotonic() - began < 10


def test_numbers_keep_their_values_and_odd_types_are_refused():
    import numpy as np

    from ddpomdp.bench import strictjson

    row = {"a": np.float32(0.5), "b": np.int64(2**60), "c": np.arange(2), "d": (True, None), "e": np.array([np.nan])}
    expected = {"a": 0.5, "b": 2**60, "c": [0, 1], "d": [True, None], "e": [None], "nonfinite": {"e.0": "nan"}}
    assert strictjson.loads(strictjson.dumps(strictjson.strict(row))) == expected
    with pytest.raises(TypeError, match="got a object"):
        strictjson.strict({"a": object()})
    with pytest.raises(ValueError, match="NaN"):
        strictjson.loads("[NaN]")
    with pytest.raises(ValueError, match="twice"):
        strictjson.loads('{"a": 1, "a": 2}')


@pytest.mark.parametrize(
    "rows", [[], [{"quality": 1.0}], [{"quality": 1.0, "tokens": 1, "seed": 9}], [{"quality": {1}}]]
)
def test_bad_rows_fail_the_cell(rows):
    from ddpomdp.bench import QUALITY, TOKENS, Cell, Suite
    from ddpomdp.bench.workers import Failure, attempt

    suite = Suite("s", "", lambda options: [], lambda cell: rows, metrics=(QUALITY, TOKENS))
    assert isinstance(attempt(suite, Cell("c", 0, {"env": "E", "policy": "p"})), Failure)
