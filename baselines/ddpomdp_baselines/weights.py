"""Weights on disk: one plain `.npz` of arrays by their place in the network, with a text that says what they are.

Nothing is pickled; loading reads numbers and text. The text names the grammar and the features the weights speak, so
that a file meets only environments it fits.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.bench import strictjson
from ddpomdp.env import Env
from ddpomdp.options import UsageError
from ddpomdp_baselines.network import Network

ABOUT = "about"


def grammar(env: Env) -> dict[str, Any]:
    """What a network's weights depend on: roles, tools with the values of their arguments, features."""
    spec = env.spec
    return {
        "roles": list(spec.roles),
        "tools": {tool.name: {a.name: list(a.values) for a in tool.arguments} for tool in env.harness.tools},
        "self": list(spec.self_features),
        "claims": [spec.observed_claims, *spec.claim_features],
        "result": list(spec.result_features),
        "roster": list(spec.roster_features),
        "board": list(spec.board_features),
    }


def save(path: Path, network: Network, params: Any, about: Mapping[str, Any]) -> None:
    """Write weights with what is to be said about them; the same weights give the same bytes.

    Raises:
      UsageError: the file cannot be written.
    """
    stops = {} if network.stop_head == "none" else {"stop_head": network.stop_head}
    text = {
        **about,
        "network": {"width": network.width, "per_role": network.per_role} | stops,
        "env": network.env.id,
        "env_version": network.env.version,
        "harness": network.env.harness.digest,
        "grammar": grammar(network.env),
    }
    places = jax.tree.leaves_with_path(params)
    arrays = {"/".join(str(step.key) for step in place): np.asarray(leaf) for place, leaf in places}
    try:
        with open(path, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays, **{ABOUT: np.asarray(strictjson.dumps(text))})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def load(path: Any, env: Env) -> tuple[Network, Any, dict[str, Any]]:
    """(network, its parameters, what the file says of them) for an environment that speaks the same grammar.

    Args:
      path: of a file that `save` wrote, or an open binary file.
      env: where the policy is to act.

    Raises:
      UsageError: no such file, not such a file, or another grammar, with the differences.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = strictjson.loads(str(arrays.pop(ABOUT)))
        network, spoken = Network(env, **about["network"]), about["grammar"]
    except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} holds no weights: {error!r}") from error
    if differences := strictjson.differences(spoken, grammar(env)):
        raise UsageError(f"{path} speaks another grammar than {env.id} here: {'; '.join(differences[:4])}")
    params: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, leaf = name.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = jnp.asarray(array)
    shapes = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), str(jnp.asarray(x).dtype)), tree)  # noqa: E731
    if shapes(params) != shapes(network.init(env)):
        raise UsageError(f"{path} does not hold the weights of a network of width {network.width}")
    return network, params, about
