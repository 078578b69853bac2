"""The command that makes the shipped policies: `python -m ddpomdp_baselines.make_policies` (part of `make policies`).

For each task and model: `base`, cloned from noisy scripted teams, and `learned`, trained from it on the default reward.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

import ddpomdp
from ddpomdp.env import Env
from ddpomdp.harness import BRIEFS, DELEGATE, SPAWN
from ddpomdp.progress import progress
from ddpomdp_baselines import weights
from ddpomdp_baselines.clone import clone
from ddpomdp_baselines.evaluate import evaluate, means
from ddpomdp_baselines.experience import collect, group_keys
from ddpomdp_baselines.network import Network
from ddpomdp_baselines.shipped import FOLDER, file_name
from ddpomdp_baselines.teachers import TEACHERS
from ddpomdp_baselines.train import train

COMMAND = "python -m ddpomdp_baselines.make_policies"
HERE = Path(__file__).parent / FOLDER
CLONE = {"seed": 0, "updates": 300}
LEARNED: dict[str, Any] = {"algorithm": "dr_mas", "seed": 0, "options": {"eval_episodes": 0}}


def habits(env: Env, network: Network, params: Any, episodes: int = 512) -> dict[str, Any]:
    """What a policy does: agents born and hand-outs per episode, and the share of each brief level among these.

    Hand-outs are spawns where there is spawning, else delegations.
    """
    hands = SPAWN if env.rules.topology.spawn else DELEGATE
    keys, luck, group = group_keys(jax.random.key(1), episodes, 1)
    data = jax.jit(lambda p: collect(env, network, p, keys, luck, group, env.spec.max_ticks, env.params))(params)
    turns, decides = np.asarray(data.turns), np.asarray(data.decides)
    handed = turns[decides & (turns[..., 0] == hands)]
    level = [argument.name for argument in env.harness.tools[hands].arguments].index("brief")
    shares = {name: float(np.mean(handed[:, 1 + level] == i)) if len(handed) else 0.0 for i, name in enumerate(BRIEFS)}
    births = float(np.mean(np.asarray(data.facts["births"])))
    often = f"{'spawns' if hands == SPAWN else 'delegations'}_per_episode"
    return {"births_per_episode": births, often: len(handed) / episodes, "briefs": shares}


def make_base(env: Env, folder: Path, updates: int) -> None:
    """Clone the teacher into `folder`."""
    network, teacher = Network(env), TEACHERS[env.id]
    with progress(f"base, {env.id}, {env.options['model']}", updates, "updates") as advance:
        params = clone(env, teacher.on(env), network, seed=CLONE["seed"], updates=updates, advance=advance)
    about = {
        "command": COMMAND,
        "cloned_from": teacher.said(),
        "clone": {**CLONE, "updates": updates},
        "habits": habits(env, network, params),
        "evaluation": means(evaluate(env, network, params)),
    }
    weights.save(folder / file_name(env, "base"), network, params, about)


def make_learned(env: Env, folder: Path, updates: int) -> None:
    """Train from base into `folder`."""
    options = {**LEARNED["options"], **TEACHERS[env.id].training}
    with TemporaryDirectory() as run:
        result = train(
            env.id,
            LEARNED["algorithm"],
            env_options={"model": env.options["model"]},
            options=options,
            seed=LEARNED["seed"],
            updates=updates,
            init=str(folder / file_name(env, "base")),
            out=run,
        )
    network = Network(env)
    params = jax.tree.map(lambda x: x[0], result.params)
    about = {
        "command": COMMAND,
        "trained": {**LEARNED, "options": options, "updates": updates, "from": "base"},
        "habits": habits(env, network, params),
        "evaluation": means(evaluate(env, network, params)),
    }
    weights.save(folder / file_name(env, "learned"), network, params, about)


def main(words: Sequence[str] | None = None) -> int:
    """Make the files."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    parser.add_argument("--envs", nargs="+", choices=list(TEACHERS), default=list(TEACHERS))
    parser.add_argument("--models", nargs="+", help="some of the models only")
    parser.add_argument("--only", choices=("base", "learned"), help="one of the two")
    parser.add_argument("--clone-updates", type=int, default=CLONE["updates"])
    parser.add_argument("--updates", type=int, help="of training; the teacher's if not given")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [(name, model) for name in given.envs for model in given.models or TEACHERS[name].models]
    for name, model in wanted:
        env = ddpomdp.make(name, model=model)
        if given.only != "learned":
            make_base(env, given.out, given.clone_updates)
        if given.only != "base":
            make_learned(env, given.out, given.updates or TEACHERS[name].updates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
