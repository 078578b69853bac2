"""Environments, policies and suites are found by entry points, and loaded at use."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ddpomdp.presets import close_match

ENVS, POLICIES = "ddpomdp.envs", "ddpomdp.policies"


@cache
def entries(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name; the same name from two distributions is an error."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name in found and found[entry.name].value != entry.value:
            raise ValueError(f"{group}: {entry.name!r} is defined by {found[entry.name].value} and {entry.value}")
        found[entry.name] = entry
    return found


def list_envs() -> list[str]:
    """Ids of all registered environments."""
    return sorted(entries(ENVS))


def make(env_id: str, **options: Any) -> Any:
    """An environment by id.

    A preset fills every option, explicit options override it, `env.options` shows the result.

    Raises:
      ValueError: unknown id, option or value, with close matches and what is allowed.
    """
    known = entries(ENVS)
    if not isinstance(env_id, str) or env_id not in known:
        shown = repr(env_id) if len(repr(env_id)) < 80 else repr(env_id)[:77] + "..."
        raise ValueError(f"unknown environment {shown}{close_match(env_id, known)}; environments: {', '.join(known)}")
    return known[env_id].load()(**options)


def policy_names(env_id: str) -> list[str]:
    """Names of the policies an environment has."""
    found = entries(POLICIES)
    own = found[env_id].load() if env_id in found else {}
    return ["random", *own, *(name for name in found if name not in entries(ENVS))]


def policy(name: str, env: Any, **options: Any) -> Any:
    """A named policy for an environment: "random", the task's scripted ones, and those of installed packages.

    Raises:
      ValueError: unknown name or option.
    """
    from ddpomdp.policies import Random

    found = entries(POLICIES)
    own = found[env.id].load() if env.id in found else {}
    if name == "random":
        if options:
            raise ValueError(f"policy 'random' has no options, got {', '.join(options)}")
        return Random(env)
    if name in own:
        return own[name](env, **options)
    if name in found and name not in entries(ENVS):
        return found[name].load()(env, **options)
    names = policy_names(env.id)
    raise ValueError(f"{env.id} has no policy {name!r}{close_match(name, names)}; policies: {', '.join(names)}")
