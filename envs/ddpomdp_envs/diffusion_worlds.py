"""Structures in which the suite `diffusion` grows a trace: what grows, how far, and what a slope there rests on.

A structure is a world, a policy and one option that is grown. Where a closed form exists, `control_exact` has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

LEVELS = ("small", "usual", "large")  # how far sizes go


@dataclass(frozen=True)
class Structure:
    """One way in which a trace grows.

    Attributes:
      env: environment.
      grows: "trace" (x is the calls of the task's tools in an episode) or "team" (x is the number of workers).
      sizes: levels by size; a size is grown at its level and above.
      options: of the environment at a size, by name; `size // 8` say is written as a function.
      policy: name and options, which may be a function of the size too.
      assumes: what the slope rests on.
      expected: slope of d that theory gives for `shared`, in words.
      numbers: options that only change numbers, so that structures share the compilations of one shape.
      before: how many decisions before the middle one the context is.
      uniform: whether alternatives are any legal turn; else the policy's own.
      most: largest number of contexts.
    """

    env: str
    grows: str
    sizes: Mapping[int, str]
    options: Any
    policy: tuple[str, Any]
    assumes: str
    expected: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    before: int = 0
    uniform: bool = False
    most: int = 100_000


def _levels(small: tuple[int, ...], usual: tuple[int, ...] = (), large: tuple[int, ...] = ()) -> dict[int, str]:
    return {size: level for level, sizes in zip(LEVELS, (small, usual, large), strict=True) for size in sizes}


_TEAM = ("team", {})
_FREE = {"price_token": 0.0, "price_second": 0.0}  # quality alone: prices would grow with the trace

STRUCTURES: dict[str, Structure] = {
    "additive": Structure(
        "Additive-v0",
        "trace",
        _levels((8, 64, 512), (), (4_096,)),
        lambda size: {"num_subtasks": size},
        _TEAM,
        "more subtasks; contributions independent, every one counts, base success 1/2 at all sizes",
        "−1/2",
    ),
    "additive, deeper subtasks": Structure(
        "Additive-v0",
        "trace",
        _levels((8, 64, 512), (4_096,)),
        lambda size: {"num_subtasks": 8} | ({"decisions": size // 8} if size > 8 else {}),
        _TEAM,
        "8 subtasks, each decided by more and more calls alike",
        "−1: the effect of one call shrinks as 1/T, the spread stays",
    ),
    "additive, irrelevant decisions": Structure(
        "Additive-v0",
        "trace",
        _levels((8, 64, 512), (4_096,)),
        lambda size: {"num_subtasks": 8} | ({"irrelevant": size // 8 - 1} if size > 8 else {}),
        _TEAM,
        "8 decisions that count, more and more that count nothing and add no noise; one that counts is looked at",
        "0",
        before=1,
    ),
    "additive, wider team": Structure(
        "Additive-v0",
        "team",
        _levels((2, 8, 64), (300,)),
        lambda size: {"num_subtasks": 512, "agents": size},
        _TEAM,
        "512 subtasks in all, spread over more and more workers: equal total work",
        "0",
    ),
    "majority": Structure(
        "Majority-v0",
        "trace",
        _levels((8, 16, 32), (64,), (512,)),
        lambda size: {"num_subtasks": size},
        _TEAM,
        "a binary outcome whose threshold is the median; base success 1/2 at all sizes",
        "−1/2",
    ),
    "majority, off centre": Structure(
        "Majority-v0",
        "trace",
        _levels((8, 16, 32), (64,)),
        lambda size: {"num_subtasks": size},
        _TEAM,
        "a binary outcome whose threshold, 3/4, is a fixed share away from the mean; base success falls with T",
        "faster than any power",
        numbers={"threshold": 0.75},
    ),
    "chain": Structure(
        "Chain-v0",
        "trace",
        _levels((8, 16, 32), (64,)),
        lambda size: {"num_subtasks": size},
        _TEAM,
        "all must be right; chances rise with T so that base success stays 1/2",
        "−1",
    ),
    "chain, fixed chances": Structure(
        "Chain-v0",
        "trace",
        _levels((8, 16, 32), (64,)),
        lambda size: {"num_subtasks": size},
        _TEAM,
        "all must be right at chances 0.7 and 0.95, so base success vanishes with T",
        "faster than any power",
        numbers={"chances": (0.7, 0.95)},
    ),
    "Search-v0, more rows": Structure(
        "Search-v0",
        "trace",
        _levels((6, 24), (), (96,)),
        lambda size: {"preset": "tiny", "num_subtasks": size, "max_ticks": 32 + 2 * size, **_FREE},
        ("swarm", {"n": 3}),
        "3 searchers, more rows; a call is weighed against any other legal turn",
        "none known",
        uniform=True,
        most=256,
    ),
    "Math-v0, more problems": Structure(
        "Math-v0",
        "trace",
        _levels((1, 4), (), (16,)),
        lambda size: {"num_subtasks": size, "capacity": 4, "roster": 4, "max_ticks": 64 + 16 * size, **_FREE},
        ("team", {"samples": 2}),
        "the crew of three, more problems; a call is weighed against any other legal turn",
        "none known",
        uniform=True,
        most=256,
    ),
    "DataScience-v0, more variants": Structure(
        "DataScience-v0",
        "trace",
        _levels((2, 16), (), (32,)),
        lambda size: {
            "topology": "swarm",
            "capacity": size + 3,
            "num_subtasks": size,
            "counts": (1, size),
            "max_ticks": 64,
            **_FREE,
        },
        ("variants", lambda size: {"n": size, "rework": 0}),
        "one engineer, more modelers with a variant each, one analyst; a call is weighed against any other legal turn",
        "none known",
        uniform=True,
        most=256,
    ),
}


def sizes(structure: str, level: str) -> list[int]:
    """The sizes of a structure at a level, ascending."""
    known = STRUCTURES[structure].sizes
    return sorted(size for size, least in known.items() if LEVELS.index(least) <= LEVELS.index(level))


@cache
def shape(env: str, options: tuple[tuple[str, Any], ...], policy: str, of_policy: tuple[tuple[str, Any], ...]) -> Any:
    """(environment, policy), the same objects each time, so that structures share their compilations."""
    import ddpomdp

    world = ddpomdp.make(env, **dict(options))
    return world, ddpomdp.policy(policy, world, **dict(of_policy))


def world(structure: str, size: int) -> tuple[Any, Any, Any]:
    """(environment that is compiled, policy, environment whose numbers are played)."""
    import ddpomdp

    row = STRUCTURES[structure]
    options = row.options(size)
    name, given = row.policy
    of_policy: Any = given(size) if callable(given) else given
    env, policy = shape(row.env, tuple(sorted(options.items())), name, tuple(sorted(of_policy.items())))
    return env, policy, ddpomdp.make(row.env, **options, **row.numbers) if row.numbers else env


def exact(structure: str, size: int) -> dict[str, float] | None:
    """What a closed form gives for the shared outcome: delta, sigma, d, rho; None where there is none."""
    from ddpomdp_envs import control_exact
    from ddpomdp_envs.control import LAWS

    if STRUCTURES[structure].env not in LAWS:
        return None
    return control_exact.signal_to_noise(world(structure, size)[2])
