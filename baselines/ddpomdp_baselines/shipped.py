"""The policies `base` and `learned` that come with the package: one file per environment and model.

`python -m ddpomdp_baselines.make_policies` made them; what each is stands in it (`ddpomdp_baselines.weights.load`).
"""

from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import jax

from ddpomdp.env import Env
from ddpomdp.options import UsageError
from ddpomdp.timestep import TimeStep
from ddpomdp_baselines import weights
from ddpomdp_baselines.network import Network

PACKAGE, FOLDER = "ddpomdp_baselines", "policies"


@dataclass(frozen=True)
class Trained:
    """A network with weights: a `Policy` whose `init` gives them. Those of one environment share a compilation."""

    network: Network
    params: Any = field(compare=False)
    about: dict[str, Any] = field(compare=False)

    @property
    def env(self) -> Env:
        """Where it acts."""
        return self.network.env

    def init(self, env: Env) -> Any:
        """The weights."""
        return self.params

    def carry(self, env: Env) -> Any:
        """No memory."""
        return self.network.carry(env)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """As the network."""
        return self.network.act(params, key, carry, ts)


def file_name(env: Env, name: str, model: str | None = None) -> str:
    """Of the weights of a named policy."""
    return f"{env.id}.{env.options['model'] if model is None else model}.{name}.npz"


def shipped(env: Env, name: str, model: str | None, greedy: bool) -> Trained:
    """A policy that came with the package."""
    file = file_name(env, name, model)
    place = resources.files(PACKAGE).joinpath(FOLDER, file)
    if not place.is_file():
        raise UsageError(f"policy {name!r}: the package has no {file}")
    with resources.as_file(place) as path:
        network, params, about = weights.load(path, env)
    return Trained(replace(network, greedy=greedy), params, about)


def base(env: Env, model: str | None = None, greedy: bool = False) -> Trained:
    """The network cloned from noisy scripted teams, where training begins.

    Args:
      env: the environment.
      model: whose; the environment's own model if None.
      greedy: always the most probable token.
    """
    return shipped(env, "base", model, greedy)


def learned(env: Env, model: str | None = None, greedy: bool = False) -> Trained:
    """The network that training on the default reward ended with; arguments as for `base`."""
    return shipped(env, "learned", model, greedy)
