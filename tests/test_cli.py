import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpomdp import cli
from ddpomdp.options import UsageError, merge, parse_options, parse_value

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests" / "fakes"


@pytest.fixture(autouse=True)
def fakes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FAKES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPOMDP_DEBUG", raising=False)


def bad(capsys, *words):
    """The one line that `words` are refused with."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("ddpomdp: ")
    return err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("no command", "allowed: envs, play, bench, report, trace, credit, check, greet, tools")),
        (("bnech",), ("unknown command 'bnech'", "did you mean bench?", "allowed: bench")),
        (("bench",), ("SUITE", "ddpomdp bench --help")),
        (("bench", "fak"), ("unknown suite 'fak'", "did you mean fake?")),
        (("bench", "../fake"), ("unknown suite",)),
        (("bench", "ddpomdp_fakes:fake"), ("unknown suite",)),
        (("bench", "fake\n\x1b[31m\x00"), ("unknown suite 'fake\\n\\x1b[31m\\x00'",)),
        (("bench", "x" * 10_000), ("unknown suite",)),
        (("bench", "notsuite"), ("gave a int", "ddpomdp.bench.Suite")),
        (("bench", "fake", "--jobs", "x"), ("--jobs", "'x'")),
        (("bench", "fake", "--jobs", "0"), ("jobs 0; allowed: integers from 1",)),
        (("bench", "fake", "--jbos", "2"), ("'--jbos'", "did you mean --jobs", "--out")),
        (("bench", "local", "--jobs", "2"), ("suite local cannot travel to worker processes",)),
        (("bench", "fake", "epsodes=3"), ("unknown option of suite fake 'epsodes'", "did you mean episodes?")),
        (("bench", "fake", "episodes=many"), ("'episodes' got 'many'; allowed: an integer",)),
        (("bench", "fake", "episodes=true"), ("allowed: an integer",)),
        (("bench", "fake", "seeds=0,0"), ("Fake-v0.random.s0 twice",)),
        (("bench", "fake", "seeds=[]", "extra"), ("got 'extra'", "key=value")),
        (("bench", "fake", "seeds=-1"), ("seed -1; allowed: integers from 0",)),
        (("bench", "fake", "seeds=é"), ("cell id 'Fake-v0.random.sé'",)),
        (("report", "nowhere"), ("nowhere holds no run",)),
        (("report", ".", "a=1"), ("takes no key=value options",)),
        (("play", "E", "--seed", "-1"), ("seed -1; allowed",)),
        (("play", "E", "--preset", "tiny", "preset=small"), ("got --preset tiny and preset=small",)),
        (("play", "E", "--ticks", "0"), ("ticks 0; allowed",)),
        (("play", "E", "--plot", "no/where.png"), ("no folder",)),
        (("play", "E", "--plot", "trace.gif"), (".png or .svg",)),
        (("play", "E", "--save", "no/where.json"), ("no folder",)),
        (("play", "E", "--save", "trace.png"), ("ends in .json",)),
        (("trace",), ("no command", "allowed: validate, import, metrics, replay, plot, export")),
        (("trace", "validat"), ("unknown command 'validat'", "did you mean validate?")),
        (("trace", "validate", "no.json"), ("no.json: no such file",)),
        (("trace", "validate", "no.json", "a=1"), ("takes no key=value options",)),
        (("trace", "plot", "no.json", "--out", "a.gif"), (".png or .svg",)),
        (("trace", "export", "no.json", "--out", "no/where.json"), ("no folder",)),
        (("trace", "export", "no.json", "--to", "csv", "--out", "a"), ("--to",)),
        (("check",), ("ENV", "ddpomdp check --help")),
        (("check", "Serch-v0"), ("unknown environment 'Serch-v0'; did you mean Search-v0?",)),
        (("check", "Search-v0", "preset=tny"), ("unknown preset 'tny'; did you mean tiny?",)),
        (("check", "Search-v0", "--episodes", "0"), ("episodes: got 0, allowed: whole numbers 1 to",)),
        (("check", "Search-v0", "--ticks", "0"), ("max_ticks: got 0",)),
        (("check", "Search-v0", "--seed", "-1"), ("seed: got -1",)),
        (("greet", "--name", "nobody"), ("got 'nobody'; allowed: \\x1b[31manybody",)),
        (("tools", "gret"), ("unknown command 'gret'; did you mean greet?",)),
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, words, parts, tmp_path):
    line = bad(capsys, *words)
    assert [part for part in parts if part not in line] == []
    assert not any(tmp_path.rglob("*.json*"))


def test_unexpected_error_is_one_line_unless_debugging(capsys, monkeypatch):
    assert cli.main(["greet", "--name", "crash"]) == 1
    assert capsys.readouterr().err == "ddpomdp: RuntimeError: a bug in two lines (DDPOMDP_DEBUG=1 shows where)\n"
    monkeypatch.setenv("DDPOMDP_DEBUG", "1")
    assert cli.main(["greet", "--name", "crash"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_commands_of_other_packages(capsys):
    assert cli.main(["greet", "a.b=1", "--name", "x=y", "a.c=[1,2]"]) == 0
    assert capsys.readouterr().out == "hello x=y {'a': {'b': 1, 'c': [1, 2]}}\n"
    assert cli.main(["tools", "greet"]) == 0
    assert capsys.readouterr().out == "hello you {}\n"


SUB_VERBS = [f"{name} {sub}" for name, verb in cli.VERBS.items() if isinstance(verb, dict) for sub in verb]
VERBS = [*(name for name, verb in cli.VERBS.items() if not isinstance(verb, dict)), *SUB_VERBS]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_has_an_example(capsys, verb):
    assert cli.main([*verb.split(), "--help"]) == 0
    assert f"Example: ddpomdp {verb}" in " ".join(capsys.readouterr().out.split())


def test_help_lists_all_verbs_and_loads_nothing(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in (*cli.VERBS, "greet", "tools"))
    code = "import ddpomdp, sys; before = set(sys.modules); import ddpomdp.cli; ddpomdp.cli.main(['--help']);"
    code += "print([m for m in ('jax', 'matplotlib', 'ddpomdp_fakes', 'gymnasium') if m in set(sys.modules) - before])"
    path = os.pathsep.join(map(str, (ROOT, FAKES)))
    end = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert end.stdout.splitlines()[-1] == "[]"


def test_bench_picks_a_free_folder_and_report_reads_it(capsys, tmp_path):
    assert cli.main(["bench", "fake"]) == 0
    assert cli.main(["bench", "fake"]) == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fake", "fake-2"}
    assert "name one with --out" in capsys.readouterr().err or cli.main(["bench", "fake", "--resume"]) == 2
    capsys.readouterr()
    assert cli.main(["report", "runs/fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["suite"] == "fake"
    assert cli.main(["report", "runs/fake", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "differences": []}


def test_without_the_extra_the_results_stand(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["bench", "fake", "--out", "r"]) == 0
    assert "pip install 'ddpomdp[plot]'" in capsys.readouterr().err
    assert (tmp_path / "r" / "results.json").exists() and not (tmp_path / "r" / "report.html").exists()
    assert "pip install 'ddpomdp[plot]'" in bad(capsys, "report", "r")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("3.0", 3.0),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("none", None),
        ("k2.5", "k2.5"),
        ("3.11.7", "3.11.7"),
        ("1_000", "1_000"),
        ("", ""),
        ('"3"', "3"),
        ('"a,b"', "a,b"),
        ("1,2.5,x", [1, 2.5, "x"]),
        ("[1, two]", [1, "two"]),
        ("[]", []),
        ("[[1,2],[3]]", [[1, 2], [3]]),
        ("__import__('os')", "__import__('os')"),
        ("١", "١"),
    ],
)
def test_values(text, value):
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["nan", "-inf", "1e999", "[1e999]", "[NaN]", "[1", "[1,[2]", '"a', "9" * 5000, "[" * 100_000, '["a" b]']
)
def test_bad_values(text):
    with pytest.raises(UsageError):
        parse_value(text)


@pytest.mark.parametrize(
    "words", [["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"], ["=1"], ["a..b=1"], ["1a=2"], ["a"]]
)
def test_bad_options(words):
    with pytest.raises(UsageError):
        parse_options(words)


def test_merge_goes_by_the_type_of_the_default():
    defaults = {"a": 1.0, "b": [0], "c": None, "d": {"e": 1}}
    given = {"a": 2, "b": 3, "c": "x", "d": {"e": 5}}
    assert merge(defaults, given, "it") == {"a": 2.0, "b": [3], "c": "x", "d": {"e": 5}}
    with pytest.raises(UsageError, match="unknown option of d 'f'"):
        merge(defaults, {"d": {"f": 1}}, "it")


def test_envs(capsys):
    assert cli.main(["envs", "--json"]) == 0
    assert {"id": "Search-v0", "module": "ddpomdp_envs.search_env"} in json.loads(capsys.readouterr().out)
    assert cli.main(["envs"]) == 0
    assert "Search-v0" in capsys.readouterr().out
