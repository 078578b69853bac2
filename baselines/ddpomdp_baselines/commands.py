"""The command `ddpomdp train`."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ddpomdp.cli import Positional, arg
from ddpomdp.options import UsageError, choose, refusal
from ddpomdp_baselines import algorithms  # also tells at once, in one line, if the extra `baselines` is missing

RUN = ("seed", "num_seeds", "updates", "lag", "init")


@dataclass(frozen=True)
class Train:
    """Train a policy: weights, curves and checkpoints in a folder; key=value words are options of the run (updates,
    seed, num_seeds, init, lag, groups, group_size, learning_rate, ...) and of the algorithm, env.KEY=value words those
    of the environment.

    Example: ddpomdp train dr_mas Search-v0 updates=20 num_seeds=2 env.model=weak
    """

    algorithm: Annotated[Positional[str], arg(metavar="ALGORITHM")]
    """Row of the algorithm table; an unknown name lists them."""
    env: Annotated[Positional[str], arg(metavar="ENV")]
    """Environment, see `ddpomdp envs`."""
    out: Path | None = None
    """Folder; the first free of runs/train-ALGORITHM, runs/train-ALGORITHM-2, ... if not given."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder."""
    as_json: Annotated[bool, arg(name="json")] = False
    """Print a JSON object."""

    def __call__(self, options: dict[str, Any]) -> int:
        """Train."""
        choose("algorithm", self.algorithm, algorithms.names())
        of_env = options.pop("env", {})
        if not isinstance(of_env, dict):
            raise UsageError(f"got env={of_env!r}; options of the environment are spelled env.KEY=value")
        of_run = {name: options.pop(name) for name in RUN if name in options}
        from ddpomdp_baselines.train import Options, train

        names = [*RUN, *(f.name for f in fields(Options)), *(f.name for f in fields(algorithms.Algorithm))]
        for name in options:
            if name not in names:
                raise UsageError(refusal("option of train", name, [*names, "env.KEY"]))
        result = train(
            self.env,
            self.algorithm,
            env_options=of_env,
            options=options,
            out=self.out,
            resume=self.resume,
            **of_run,
        )
        if self.as_json:
            print(json.dumps({"path": str(result.path), "evaluation": result.eval}, indent=1, allow_nan=False))
        else:
            _show(result)
        return 0


def _show(result: Any) -> None:
    """Start and end of every seed, what it took, and where it is."""
    from ddpomdp.cli import print_table

    columns = ("seed", "", "reward", "quality", "tokens", "seconds", "agents born")
    lines = [
        (str(seed), when, f"{m['reward']:.4f}", f"{m['quality']:.4f}", f"{m['tokens']:,.0f}", f"{m['wall_s']:,.0f}",
         f"{m['births']:.1f}")
        for seed, score in result.eval.items()
        for when, m in score.items()
    ]  # fmt: skip
    if lines:
        print_table(columns, lines)
    for seed, rows in result.curves.items():
        last = rows[-1]
        print(
            f"seed {seed}: {last['update']} updates, {last['total_episodes']:,.0f} episodes, "
            f"{last['total_decisions']:,.0f} decisions, {last['total_simulated_tokens']:,.0f} simulated tokens, "
            f"{last['total_simulated_s']:,.0f} simulated seconds"
        )
    print(result.path)
