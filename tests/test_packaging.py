"""What an installation gets: the right folders are packages, types are shipped, the metadata names what exists."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddpomdp._version import __version__

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SOURCES = [ROOT, ROOT / "envs", ROOT / "baselines"]
ENTRY_POINTS = {
    f"{group}: {name}": target
    for group, table in {"scripts": PROJECT["scripts"], **PROJECT["entry-points"]}.items()
    for name, target in table.items()
}


@pytest.mark.parametrize("folder", ["envs", "baselines", "tests", "notebooks"])
def test_bare_folders_stay_bare(folder):
    # An editable install puts the repository root on the path. As bare folders these lose to a user's own `tests`
    # or `envs`; with an __init__.py they would win.
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
def test_packages_are_typed(package):
    assert (ROOT / package / "__init__.py").is_file()
    assert (ROOT / package / "py.typed").is_file()


def test_version_is_one_everywhere():
    # The metadata is what was installed, and lags behind a version that was raised since.
    assert __version__ == version("ddpomdp"), "the version changed: make setup"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\]", changelog, re.MULTILINE)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_entry_points_name_existing_modules(entry_point):
    module = Path(*ENTRY_POINTS[entry_point].split(":")[0].split("."))
    candidates = [source / path for source in SOURCES for path in (module.with_suffix(".py"), module / "__init__.py")]
    assert any(path.is_file() for path in candidates), f"{ENTRY_POINTS[entry_point]}: no such module"


def test_pins_satisfy_the_floors():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins: dict[str, list[str]] = {}
    for line in lines:
        if line and not line.startswith("#"):
            pin = Requirement(line)
            assert str(pin.specifier).startswith("=="), f"constraints.txt: {line} is no pin"
            pins.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier)[2:])
    stated = [
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
        PYPROJECT["build-system"]["requires"],
    ]
    floors = [Requirement(text) for texts in stated for text in texts if not text.startswith("ddpomdp[")]
    assert floors
    for floor in floors:
        versions = pins.get(canonicalize_name(floor.name), [])
        assert versions, f"{floor.name} is not pinned in constraints.txt"
        assert all(floor.specifier.contains(pinned) for pinned in versions), f"{floor}, but pinned {versions}"
