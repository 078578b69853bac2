"""Dynamic-Dec-POMDP environments for teams of LLM agents.

`make` an environment, `reset`, `step`; `policy`, `rollout` and `branch` play it. See docs/architecture.md.
"""

from typing import TYPE_CHECKING, Any

from ddpomdp._version import __version__
from ddpomdp.views.register import register as _register

if TYPE_CHECKING:
    from ddpomdp import credit, testing, trace, wrappers
    from ddpomdp.enums import CreditUnit, Decision, EventKind, LifeEnd, StopReason
    from ddpomdp.env import Env
    from ddpomdp.harness import Harness, Legal
    from ddpomdp.luck import noise_keys
    from ddpomdp.params import Params, RewardSpec
    from ddpomdp.policies import Policy, by_role
    from ddpomdp.registry import list_envs, make, policy
    from ddpomdp.rollouts import Rollout, branch, rollout
    from ddpomdp.state import State
    from ddpomdp.timestep import Event, Observation, TimeStep
    from ddpomdp.views.pettingzoo import aec_env, parallel_env
    from ddpomdp.views.text import text_env

# Where each public name lives; loaded at first use, so that `import ddpomdp` costs nothing.
_HOMES = {
    "CreditUnit": "enums",
    "Decision": "enums",
    "EventKind": "enums",
    "LifeEnd": "enums",
    "StopReason": "enums",
    "Env": "env",
    "Harness": "harness",
    "Legal": "harness",
    "noise_keys": "luck",
    "Params": "params",
    "RewardSpec": "params",
    "Policy": "policies",
    "by_role": "policies",
    "list_envs": "registry",
    "make": "registry",
    "policy": "registry",
    "Rollout": "rollouts",
    "branch": "rollouts",
    "rollout": "rollouts",
    "State": "state",
    "Event": "timestep",
    "Observation": "timestep",
    "TimeStep": "timestep",
    "aec_env": "views.pettingzoo",
    "parallel_env": "views.pettingzoo",
    "text_env": "views.text",
}
_MODULES = ("credit", "testing", "trace", "wrappers")

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    """Load a public name at first use."""
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddpomdp.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"ddpomdp.{name}")
    else:
        raise AttributeError(f"module 'ddpomdp' has no attribute {name!r}")
    globals()[name] = value
    return value


_register()


def __dir__() -> list[str]:
    """Public names."""
    return sorted(__all__)
