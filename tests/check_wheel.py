"""Check the wheel as a stranger would meet it: `python tests/check_wheel.py DIST`.

A checkout hides packaging mistakes (a file left out, a folder too many, an undeclared dependency), so the wheel is
looked into, installed without extras in an empty virtual environment, and run from a folder that is not the checkout.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"ddpomdp", "ddpomdp_envs", "ddpomdp_baselines"}


def check_contents(wheel: Path) -> None:
    """Exit unless the wheel holds the three typed packages and its own metadata, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    dist_info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    top = {name.split("/")[0] for name in names}
    if top != PACKAGES | {dist_info}:
        sys.exit(f"{wheel.name}: top level is {sorted(top)}, not {sorted(PACKAGES | {dist_info})}")
    missing = {f"{package}/py.typed" for package in PACKAGES} - set(names)
    if missing:
        sys.exit(f"{wheel.name}: without {sorted(missing)}")


def check_alone(wheel: Path) -> None:
    """Install the wheel in an empty environment and use it from an empty folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as folder:
        environment, elsewhere = Path(folder, "venv"), Path(folder, "elsewhere")
        elsewhere.mkdir()
        # Copied, since Python puts the script's own folder first on the path.
        shutil.copy(ROOT / "tests" / "wheel_smoke.py", elsewhere)
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        constraints = str(ROOT / "constraints.txt")

        def run(*command: str) -> None:
            subprocess.run(command, cwd=elsewhere, env=clean, check=True, stdin=subprocess.DEVNULL)

        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, str(wheel))
        run(python, "-c", "import ddpomdp, ddpomdp_envs, ddpomdp_baselines")
        run(python, "wheel_smoke.py")
        ddpomdp = str(environment / "bin" / "ddpomdp")
        run(ddpomdp, "envs")
        for words in (("train", "dr_mas", "Search-v0"), ("play", "Search-v0", "--policy", "base")):
            lacks = subprocess.run([ddpomdp, *words], cwd=elsewhere, env=clean, capture_output=True, text=True)
            said = lacks.stderr.strip()
            if lacks.returncode != 2 or "ddpomdp[all]" not in said or "\n" in said:
                sys.exit(f"{words[0]} without its extra: exit code {lacks.returncode}, {said!r}")
        run(python, "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[baselines]")
        run(ddpomdp, "train", "dr_mas", "Search-v0", "updates=20", "eval_episodes=0", "--out", "run")


def main() -> None:
    """Check the one wheel in the folder named on the command line."""
    wheels = sorted(Path(sys.argv[1]).resolve().glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{sys.argv[1]}: one wheel expected, found {[wheel.name for wheel in wheels]}")
    check_contents(wheels[0])
    print(f"{wheels[0].name}: top level is as it should be", flush=True)
    try:
        check_alone(wheels[0])
    except subprocess.CalledProcessError as error:
        sys.exit(f"{wheels[0].name}: failed on its own: {error}")


if __name__ == "__main__":
    main()
