# Every verb sets up what it needs: on a fresh machine `make bench` or `make test` is the whole installation.

# The newest Pythons may lack wheels of some dependency (see constraints.txt), so the first supported one is taken.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# What the two README commands and their like pass on: make bench BENCH_ARGS="--jobs 2", make test PYTEST_ARGS="-n 2 -k search".
BENCH_ARGS ?=
PYTEST_ARGS ?= -n 2 --dist loadfile
SPEED_ARGS ?=
# A CPU build of PyTorch, by its label, so that no other can be taken. Where the package index has none under that label
# (its plain builds for macOS are CPU builds): make test-external TORCH=torch==2.13.0
TORCH ?= torch==2.13.0+cpu
EXTERNAL := .venv-external

.PHONY: help setup bench test test-slow test-external check fmt wheel speed policies docs
.DEFAULT_GOAL := help

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)  ## make .venv from the pinned versions

bench: $(STAMP)  ## the quick benchmark: every task, a report under runs/
	$(BIN)/ddpomdp bench quick $(BENCH_ARGS)

test: $(STAMP)  ## the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

# pytest's exit status 5 says that no test is marked slow, which is no failure.
test-slow: $(STAMP)  ## the heavy sweeps
	XLA_FLAGS="$${XLA_FLAGS:-}" $(BIN)/python -m pytest -m slow $(PYTEST_ARGS) || test $$? -eq 5

test-external: $(EXTERNAL)/.installed  ## learners of other libraries on our views, with PyTorch in .venv-external
	$(EXTERNAL)/bin/python -m pytest -m external -rP

check: $(STAMP)  ## lint, format and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

fmt: $(STAMP)  ## format, and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Without isolation the build uses the pinned hatchling of .venv; the wheel is built from the sdist, which so is checked too.
wheel: $(STAMP)  ## build the wheel and test it alone, from another folder
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python tests/check_wheel.py dist

speed: $(VENV)/.peers  ## turns per second beside other suites, decisions per second of learning
	$(BIN)/python -m ddpomdp.bench.speed $(SPEED_ARGS)
	$(BIN)/python -m ddpomdp_baselines.speed

policies: $(STAMP)  ## make the shipped policies again: tuned heuristic, base, learned, of three tasks (long)
	$(BIN)/python -m ddpomdp_envs.tune_search --out envs/ddpomdp_envs/tuned/search.json
	$(BIN)/python -m ddpomdp_envs.tune_math --out envs/ddpomdp_envs/tuned/math.json
	$(BIN)/python -m ddpomdp_envs.tune_datascience --out envs/ddpomdp_envs/tuned/datascience.json
	$(BIN)/python -m ddpomdp_baselines.make_policies

docs: $(STAMP)  ## check links and run the code in README.md and docs/
	$(BIN)/python docs/check_docs.py

# PyTorch comes first: what is installed after it takes it as it is, and brings no other build.
$(EXTERNAL)/.installed: pyproject.toml constraints.txt ddpomdp/_version.py
	@test -n "$(PYTHON)" || { echo "ddpomdp needs Python 3.11 to 3.14 on the PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(EXTERNAL)
	$(EXTERNAL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(EXTERNAL)/bin/python -m pip install --quiet "$(TORCH)"
	$(EXTERNAL)/bin/python -m pip install --quiet -c constraints.txt --build-constraint constraints.txt -e '.[all]' --group dev --group external
	@touch $@

$(VENV)/.peers: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group peers
	@touch $@

# The stamp is touched last, so that an interrupted set-up starts again. pip comes first: dependency groups need 25.1.
# The version is a prerequisite since the installed metadata repeats it.
$(STAMP): pyproject.toml constraints.txt ddpomdp/_version.py
	@test -n "$(PYTHON)" || { echo "ddpomdp needs Python 3.11 to 3.14 on the PATH; or say where: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --build-constraint constraints.txt -e '.[all]' --group dev
	@touch $@
