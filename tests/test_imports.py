"""Imports point one way (ddpomdp <- ddpomdp_envs <- ddpomdp_baselines), and `import ddpomdp` is quiet and light."""

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "ddpomdp": ROOT / "ddpomdp",
    "ddpomdp_envs": ROOT / "envs" / "ddpomdp_envs",
    "ddpomdp_baselines": ROOT / "baselines" / "ddpomdp_baselines",
}
FORBIDDEN = {
    "ddpomdp": {"ddpomdp_envs", "ddpomdp_baselines"},
    "ddpomdp_envs": {"ddpomdp_baselines"},
    "ddpomdp_baselines": set(),
}
# Heavy or optional; matplotlib and flax stand for the extras `plot` and `baselines`.
NOT_LOADED = {"ddpomdp_envs", "ddpomdp_baselines", "pettingzoo", "matplotlib", "flax"}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, root package) of every absolute import at any depth, and of import_module("...") calls."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name.split(".")[0]) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module.split(".")[0]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module.split(".")[0]


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_point_one_way(package):
    files = sorted(FOLDERS[package].rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in imported(path.read_text(encoding="utf-8"))
        if name in FORBIDDEN[package]
    ]
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "import ddpomdp_envs",
        "from ddpomdp_envs.search import make_env",
        "def f():\n    import numpy, ddpomdp_envs.search as s",
        "if TYPE_CHECKING:\n    from ddpomdp_envs import search",
        "importlib.import_module('ddpomdp_envs.search')",
        "import_module('ddpomdp_envs')",
    ],
)
def test_the_check_sees_every_kind_of_import(source):
    assert "ddpomdp_envs" in {name for _, name in imported(source)}


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_import_is_quiet():
    assert in_fresh_python("import ddpomdp") == ""


def test_import_loads_nothing_it_need_not():
    loaded = set(in_fresh_python("import sys, ddpomdp; print(*sys.modules)").split())
    assert "ddpomdp" in loaded
    assert not NOT_LOADED & loaded


def test_import_adds_under_half_a_second():
    # Processor time, so that other work on the machine (tests run in parallel) does not count.
    code = "import time, jax, gymnasium; t = time.process_time(); import ddpomdp; print(time.process_time() - t)"
    assert statistics.median(float(in_fresh_python(code)) for _ in range(3)) < 0.5
