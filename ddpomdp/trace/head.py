"""The head of a trace: everything that playing an episode again needs, and back to the environment it names."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp._version import __version__
from ddpomdp.bench import strictjson
from ddpomdp.env import Env
from ddpomdp.harness import Argument, Harness, Tool
from ddpomdp.params import Params, RewardSpec
from ddpomdp.pytree import replace
from ddpomdp.registry import make
from ddpomdp.trace.records import in_order
from ddpomdp.trace.text import TraceError

FORMAT = "ddpomdp-trace/1"
SHOWN = 5  # differences named in a refusal


def head(
    env: Env,
    *,
    key: jax.Array,
    luck: jax.Array | None,
    policy: str,
    env_params: Params | None,
    num_ticks: int,
    stop_reason: str,
    wall_ms: int,
    info: dict[str, Any],
    late_reward: np.ndarray | None,
) -> dict[str, Any]:
    """The head, but for the forced waits.

    Raises:
      ValueError: an option or a number that JSON cannot hold.
    """
    params = env.params if env_params is None else env_params
    keys = {"key": _key(key), "luck": _key(jax.random.fold_in(key, 1) if luck is None else luck)}
    late = None if late_reward is None else np.asarray(late_reward)
    device = jax.devices()[0]
    return {
        "format": FORMAT,
        "package": __version__,
        "env": env.id,
        "env_version": env.version,
        "options": {name: _option(name, value) for name, value in env.options.items()},
        "params": _changed(env.params, params),
        "weights": {name: _number(f"weight {name}", params.weights[name]) for name in in_order(params.weights)},
        "harness": harness_json(env.harness),
        **keys,
        "policy": policy,
        "jax": jax.__version__,
        "device": f"{device.platform}: {device.device_kind}",
        "ticks": num_ticks,
        "slots": env.spec.capacity,
        "stop_reason": stop_reason,
        "wall_ms": wall_ms,
        "info": {name: _number(f"info {name}", info[name]) for name in sorted(info)},
    } | (
        {} if late is None else {"late_reward": {str(u): _number("late reward", late[u]) for u in np.flatnonzero(late)}}
    )


def harness_json(harness: Harness) -> dict[str, Any]:
    """The harness with its digest as plain data."""
    return {"digest": harness.digest, **strictjson.plain(harness.described())}


def harness(head: dict[str, Any]) -> Harness:
    """The harness that a checked head describes."""
    given = head["harness"]
    argument = lambda a: Argument(a["name"], tuple(a["values"]), a["bound"], a["bits"])  # noqa: E731
    return Harness(
        tools=tuple(Tool(tool["name"], tuple(map(argument, tool["arguments"]))) for tool in given["tools"]),
        roles=tuple(given["roles"]),
        spawnable=tuple(given["spawnable"]),
        topology=tuple((name, value) for name, value in given["topology"]),
        limits=tuple((name, value) for name, value in given["limits"]),
    )


def environment(head: dict[str, Any], env: Env | None = None) -> tuple[Env, Params]:
    """The environment and the numbers that a checked head names; nothing but registered environments is loaded.

    Args:
      head: the head.
      env: use this one, if it is the one the head names, rather than make it anew.

    Raises:
      TraceError: no such environment here, or another version, harness or set of options, with what differs.
    """
    if env is None:
        try:
            made: Env = make(head["env"], **_given(head["options"]))
        except (ValueError, TypeError) as error:
            raise TraceError(f"cannot make {head['env']!r}: {error}", "ddpomdp.env") from None
    else:
        made = env
    mine = {
        "env": made.id,
        "env_version": made.version,
        "options": {name: _option(name, value) for name, value in made.options.items()},
        "harness": harness_json(made.harness),
    }
    lines = strictjson.differences({name: head[name] for name in mine}, mine)
    if lines:
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise TraceError(f"recorded under another environment (recorded -> here): {'; '.join(lines[:SHOWN])}{more}")
    return made, _params(made.params, head)


def random_key(given: dict[str, Any]) -> jax.Array:
    """A key of the head."""
    try:
        return jax.random.wrap_key_data(jnp.asarray(given["words"], jnp.uint32), impl=given["impl"])
    except (ValueError, TypeError) as error:
        raise TraceError(f"not a key of JAX {jax.__version__}: {error}", "ddpomdp.key") from None


def is_exact(head: dict[str, Any]) -> bool:
    """Whether floats must come out equal to the last bit: same JAX, same kind of device."""
    device = jax.devices()[0]
    return head["jax"] == jax.__version__ and head["device"] == f"{device.platform}: {device.device_kind}"


def _key(key: jax.Array) -> dict[str, Any]:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.shape != ():
        raise ValueError(f"key: shape {key.shape}; a trace holds one episode, which has one key")
    return {"impl": str(jax.random.key_impl(key)), "words": np.asarray(jax.random.key_data(key)).tolist()}


def _option(name: str, value: Any) -> Any:
    if isinstance(value, RewardSpec):
        return strictjson.plain({"weights": dict(value.weights), "schedule": dict(value.schedule)})
    try:
        return strictjson.loads(strictjson.dumps(strictjson.plain(value)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"option {name} cannot stand in a trace: {error}") from None


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Options as `make` takes them."""
    reward = options.get("reward")
    return {**options, "reward": RewardSpec(**reward)} if isinstance(reward, dict) else dict(options)


def _number(name: str, value: Any) -> int | float:
    number = np.asarray(value).item()
    if not np.isfinite(number):
        raise ValueError(f"{name} is {number}; a trace holds finite numbers")
    return number


def _leaves(params: Params) -> dict[str, Any]:
    """The numbers by path, without the reward weights."""
    flat = jax.tree_util.tree_flatten_with_path(replace(params, weights={}))[0]
    return {re.sub(r"\W+", ".", jax.tree_util.keystr(path)).strip("."): leaf for path, leaf in flat}


def _changed(usual: Params, params: Params) -> dict[str, Any]:
    mine = _leaves(params)
    return {
        path: np.asarray(mine[path]).tolist()
        for path, leaf in _leaves(usual).items()
        if not np.array_equal(np.asarray(leaf), np.asarray(mine[path]))
    }


def _params(usual: Params, head: dict[str, Any]) -> Params:
    """The environment's numbers with the recorded weights and changes."""
    known = _leaves(usual)
    if unknown := [path for path in head["params"] if path not in known]:
        raise TraceError(f"this environment has no number {unknown[0]!r}", "ddpomdp.params")
    if set(head["weights"]) != set(usual.weights):
        odd = sorted(set(head["weights"]) ^ set(usual.weights))
        raise TraceError(f"reward weights differ by {', '.join(odd)}", "ddpomdp.weights")
    changed = []
    for path, leaf in known.items():
        try:
            value = np.asarray(head["params"][path], np.asarray(leaf).dtype) if path in head["params"] else leaf
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{path}: {error}", "ddpomdp.params") from None
        if np.shape(value) != np.shape(leaf):
            raise TraceError(f"{path} has shape {np.shape(value)}; allowed: {np.shape(leaf)}", "ddpomdp.params")
        changed.append(jnp.asarray(value))
    structure = jax.tree.structure(replace(usual, weights={}))
    params = jax.tree.unflatten(structure, changed)
    return replace(params, weights={name: jnp.float32(weight) for name, weight in head["weights"].items()})
