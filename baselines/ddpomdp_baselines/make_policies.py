"""The command that makes the shipped policies: `python -m ddpomdp_baselines.make_policies` (part of `make policies`).

For each model: `base`, cloned from noisy scripted teams, and `learned`, trained from it on the default reward.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

import ddpomdp
from ddpomdp.env import Env
from ddpomdp.harness import BRIEFS, SPAWN
from ddpomdp.progress import progress
from ddpomdp_baselines import weights
from ddpomdp_baselines.clone import NoisyScripts, clone
from ddpomdp_baselines.evaluate import evaluate, means
from ddpomdp_baselines.experience import collect, group_keys
from ddpomdp_baselines.network import Network
from ddpomdp_baselines.shipped import FOLDER, file_name
from ddpomdp_baselines.train import train

COMMAND = "python -m ddpomdp_baselines.make_policies"
ENV, MODELS = "Search-v0", ("strong", "weak")
HERE = Path(__file__).parent / FOLDER

# What the base policy imitates, options of policy `swarm` with how often: mostly plain teams with a poor brief, and now
# and then a wider one, one whose lead searches rows itself, or rows handed out again after the first merge.
TEAMS: tuple[tuple[dict[str, Any], float], ...] = (
    ({"n": 4}, 0.3),
    ({"n": 8}, 0.3),
    ({"n": 12}, 0.2),
    ({"n": 7, "lead_rows": 20}, 0.03),
    ({"n": 9, "lead_rows": 12}, 0.03),
    ({"n": 11, "lead_rows": 4}, 0.04),
    ({"n": 6, "spread": True}, 0.03),
    ({"n": 10, "spread": True}, 0.03),
    ({"n": 15, "spread": True}, 0.04),
)
LEVELS = (("short", 0.5), ("standard", 0.35), ("detailed", 0.15))
ROUNDS: tuple[tuple[tuple[str, ...], float], ...] = (((), 0.6), (("missing",), 0.2), (("again",), 0.2))
NOISE = 0.05

CLONE = {"seed": 0, "updates": 300}
LEARNED: dict[str, Any] = {"algorithm": "dr_mas", "seed": 0, "updates": 300, "options": {"eval_episodes": 0}}


def teacher(env: Env) -> NoisyScripts:
    """The noisy scripted teams."""
    scripts, shares = [], []
    for (team, share), (brief, often), (rounds, seldom) in itertools.product(TEAMS, LEVELS, ROUNDS):
        scripts.append(ddpomdp.policy("swarm", env, **team, brief=brief, rounds=rounds))
        shares.append(share * often * seldom)
    return NoisyScripts(env, tuple(scripts), tuple(shares), NOISE)


def habits(env: Env, network: Network, params: Any, episodes: int = 512) -> dict[str, Any]:
    """What a policy does: agents born and spawns per episode, and the share of each brief level among its spawns."""
    keys, luck, group = group_keys(jax.random.key(1), episodes, 1)
    data = jax.jit(lambda p: collect(env, network, p, keys, luck, group, env.spec.max_ticks, env.params))(params)
    turns, decides = np.asarray(data.turns), np.asarray(data.decides)
    spawns = turns[decides & (turns[..., 0] == SPAWN)]
    level = [argument.name for argument in env.harness.tools[SPAWN].arguments].index("brief")
    shares = {name: float(np.mean(spawns[:, 1 + level] == i)) for i, name in enumerate(BRIEFS)}
    births = float(np.mean(np.asarray(data.facts["births"])))
    return {"births_per_episode": births, "spawns_per_episode": len(spawns) / episodes, "briefs": shares}


def make_base(env: Env, folder: Path, updates: int) -> None:
    """Clone the teacher into `folder`."""
    network, taught = Network(env), teacher(env)
    with progress(f"base, {env.options['model']}", updates, "updates") as advance:
        params = clone(env, taught, network, seed=CLONE["seed"], updates=updates, advance=advance)
    about = {
        "command": COMMAND,
        "cloned_from": {"teams": TEAMS, "briefs": LEVELS, "rounds": ROUNDS, "noise": NOISE},
        "clone": {**CLONE, "updates": updates},
        "habits": habits(env, network, params),
        "evaluation": means(evaluate(env, network, params)),
    }
    weights.save(folder / file_name(env, "base"), network, params, about)


def make_learned(env: Env, folder: Path, updates: int) -> None:
    """Train from base into `folder`."""
    with TemporaryDirectory() as run:
        result = train(
            env.id,
            LEARNED["algorithm"],
            env_options={"model": env.options["model"]},
            options=LEARNED["options"],
            seed=LEARNED["seed"],
            updates=updates,
            init=str(folder / file_name(env, "base")),
            out=run,
        )
    network = Network(env)
    params = jax.tree.map(lambda x: x[0], result.params)
    about = {
        "command": COMMAND,
        "trained": {**LEARNED, "updates": updates, "from": "base"},
        "habits": habits(env, network, params),
        "evaluation": means(evaluate(env, network, params)),
    }
    weights.save(folder / file_name(env, "learned"), network, params, about)


def main(words: Sequence[str] | None = None) -> int:
    """Make the files."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--only", choices=("base", "learned"), help="one of the two")
    parser.add_argument("--clone-updates", type=int, default=CLONE["updates"])
    parser.add_argument("--updates", type=int, default=LEARNED["updates"])
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    for model in given.models:
        env = ddpomdp.make(ENV, model=model)
        if given.only != "learned":
            make_base(env, given.out, given.clone_updates)
        if given.only != "base":
            make_learned(env, given.out, given.updates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
