"""The table of checks, and how an environment is put to them."""

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ddpomdp.options import UsageError, refusal, whole
from ddpomdp.testing.episodes import Broken, Trial

THEMES = ("contract", "luck", "legality", "lives", "ends", "pay", "mail", "clocks", "slots")
PASS, FAIL, IDLE = "pass", "fail", "not exercised"
PLAYS = "contract.plays"  # the first check: without it there is nothing to look at


@dataclass(frozen=True)
class Check:
    """One rule. `run` returns how often the event under test happened, and raises `Broken` where the rule is."""

    name: str  # stable: theme.rule
    about: str  # one line
    run: Callable[[Trial], int]
    traces: bool  # needs functions that JAX can trace
    thorough: bool  # takes long: half a minute and more


@dataclass(frozen=True)
class Result:
    """What came of one check."""

    name: str
    about: str
    status: str  # "pass", "fail", or "not exercised": the event under test did not happen
    events: int  # how often the event under test happened
    said: str  # of a failure: what was got and where


class CheckFailed(AssertionError):
    """An environment broke the rules named in the message. Attribute `results`: of every check."""

    def __init__(self, env_id: str, results: tuple[Result, ...]):
        """Name the failures among `results`."""
        self.results = results
        lines = [f"{result.name} ({result.about}): {result.said}" for result in results if result.status == FAIL]
        super().__init__("\n  ".join([f"{env_id} breaks {len(lines)} of {len(results)} rules", *lines]))


CHECKS: dict[str, Check] = {}  # by name, in the order in which they run


def check(name: str, *, traces: bool = False, thorough: bool = False) -> Callable[[Any], Any]:
    """Enter a function of a `Trial` into the table; its docstring is the rule, in one line."""

    def enter(run: Callable[[Trial], int]) -> Callable[[Trial], int]:
        assert name not in CHECKS and run.__doc__, name
        CHECKS[name] = Check(name, run.__doc__.strip().rstrip("."), run, traces, thorough)
        return run

    return enter


def run_checks(
    env: Any,
    *,
    episodes: int = 12,
    max_ticks: int = 320,
    seed: int = 0,
    only: Collection[str] | None = None,
    thorough: bool = False,
    compiled: bool = False,
) -> tuple[Result, ...]:
    """Put an environment to every check; nothing is raised for a rule that is broken.

    Random legal turns are played, in every fourth episode with `stop`, in every second without idle waiting, so that
    teams grow, talk and shrink. What did not happen is "not exercised", not passed: `max_turns`, say, without a budget.

    Args:
      env: as from `ddpomdp.make`, or any object with its contract.
      episodes: how many are played.
      max_ticks: ticks of an episode at most; one that is longer is cut, and its end not exercised.
      seed: of keys, luck and turns.
      only: names of checks; all if None.
      thorough: also the checks that take long: steps without compilation.
      compiled: `reset`, `step`, `observe` and `sample_turns` compile by themselves and are called as they are; the
        checks that would trace them are not exercised.

    Raises:
      ValueError: an unknown name in `only`, or a number out of range.
    """
    whole("episodes", episodes, 1, 10_000)
    whole("max_ticks", max_ticks, 1, 100_000)
    whole("seed", seed, 0, 2**32 - 1)
    _load()
    for name in only or ():
        if name not in CHECKS:
            raise UsageError(refusal("check", name, CHECKS))
    trial = Trial(env, episodes, max_ticks, seed, compiled)
    results: list[Result] = []
    # In the order of the themes, whichever of them was imported first.
    for one in sorted(CHECKS.values(), key=lambda one: THEMES.index(one.name.split(".")[0])):
        if only is not None and one.name not in only:
            continue
        if results and results[0].name == PLAYS and results[0].status == FAIL:
            results.append(Result(one.name, one.about, IDLE, 0, "no episode could be played"))
        else:
            results.append(_run(one, trial, thorough or only is not None, compiled))
    return tuple(results)


def check_env(env: Any, **options: Any) -> tuple[Result, ...]:
    """Put an environment to every check; `run_checks` says with which options.

    Returns:
      the results, some of them perhaps "not exercised".

    Raises:
      CheckFailed: naming the rules that are broken, what was got and where.
      ValueError: as `run_checks`.
    """
    results = run_checks(env, **options)
    if any(result.status == FAIL for result in results):
        raise CheckFailed(getattr(env, "id", type(env).__name__), results)
    return results


def _run(one: Check, trial: Trial, thorough: bool, compiled: bool) -> Result:
    def result(status: str, events: int = 0, said: str = "") -> Result:
        return Result(one.name, one.about, status, events, said)

    if one.traces and compiled:
        return result(IDLE, said="its functions cannot be traced")
    if one.thorough and not thorough:
        return result(IDLE, said="takes long: thorough=True")
    try:
        events = one.run(trial)
    except Broken as broken:
        return result(FAIL, said=str(broken))
    except Exception as error:  # an environment may fail in any way: that too is for the report
        said = " ".join(str(error).split())
        return result(FAIL, said=f"{type(error).__name__}: {said[:300]}")
    return result(PASS, events) if events else result(IDLE, said="did not happen in these episodes")


def _load() -> None:
    """Fill the table: each theme enters its checks when it is imported."""
    for theme in THEMES:
        importlib.import_module(f"ddpomdp.testing.{theme}")
