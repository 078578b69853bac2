"""Environments and policies by name, found through entry points and loaded at use."""

import inspect
from functools import cache
from typing import Any

from ddpomdp import plugins
from ddpomdp.options import UsageError, refusal

ENVS, POLICIES = "ddpomdp.envs", "ddpomdp.policies"


def list_envs() -> list[str]:
    """Ids of all registered environments."""
    return list(plugins.found(ENVS))


def make(env_id: str, **options: Any) -> Any:
    """An environment by id.

    A preset fills every option, explicit options override it, `env.options` shows the result.

    Raises:
      ValueError: unknown id, option or value, with close matches and what is allowed.
    """
    return plugins.load(ENVS, env_id, "environment")(**options)


@cache
def made(env_id: str, **options: Any) -> Any:
    """As `make`, the same object each time, so that whoever plays it shares its compilations; options hashable."""
    return make(env_id, **options)


def policy_names(env_id: str) -> list[str]:
    """Names of the policies an environment has."""
    return ["random", *_own_policies(env_id), *_policies_for_all()]


def policy(name: str, env: Any, **options: Any) -> Any:
    """A named policy for an environment: "random", the task's scripted ones, and those of installed packages.

    Raises:
      ValueError: unknown name or option, with close matches and what is allowed.
    """
    from ddpomdp.policies import Random

    own = _own_policies(env.id)
    if name == "random":
        factory: Any = Random
    elif name in own:
        factory = own[name]
    elif name in _policies_for_all():
        factory = plugins.load(POLICIES, name, "policy")
    else:
        raise UsageError(refusal(f"policy of {env.id}", name, policy_names(env.id)))
    _check_options(f"policy {name}", factory, options)
    return factory(env, **options)


def _own_policies(env_id: str) -> dict[str, Any]:
    """The scripted policies that came with an environment: the entry point of its id."""
    return plugins.load(POLICIES, env_id, "policies") if env_id in plugins.found(POLICIES) else {}


def _policies_for_all() -> list[str]:
    """Entry points that are a policy of their own and no environment's set of them."""
    envs = plugins.found(ENVS)
    return [name for name in plugins.found(POLICIES) if name not in envs]


def _check_options(what: str, factory: Any, given: dict[str, Any]) -> None:
    """Refuse options that `factory` (whose first parameter is the environment) does not name."""
    parameters = list(inspect.signature(factory).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for name in given:
        if name not in known:
            raise UsageError(refusal(f"option of {what}", name, known))
