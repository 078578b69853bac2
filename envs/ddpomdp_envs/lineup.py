"""Line-ups: the policies of a task that stand side by side in a benchmark, and how a cell plays one.

All episodes of one environment shape share few compilations: scripts of a kind are one program, random play another,
and the model is numbers (`env.params`). Episode e of seed s starts from the same key under every policy and model, so
that they meet the same tasks with the same luck.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpomdp.bench import Cell, Output, Picture
from ddpomdp.options import choose, whole
from ddpomdp.registry import made
from ddpomdp_envs.datascience import MODELS as SCIENTISTS

WIDTHS, BRIEFS = (4, 8, 12), ("short", "standard", "detailed")
OF_MODEL = ("heuristic", "base", "learned")  # policies that differ with the model


@dataclass(frozen=True)
class Entry:
    """A policy by its label in the tables: name and options for `ddpomdp.policy`, and where it plays."""

    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)  # options of the environment beside preset and model


def _of_model(entry: Entry, model: str) -> dict[str, Any]:
    return {"model": model} if entry.policy in OF_MODEL else {}


def _scientists(entry: Entry, model: str) -> dict[str, Any]:
    """Scripted data scientists tune as often as is usual for the model."""
    plain = entry.policy in ("chain", "single") and "tune" not in entry.options
    return {"tune": SCIENTISTS[model].tunes} if plain else _of_model(entry, model)


@dataclass(frozen=True)
class Lineup:
    """The policies of one task.

    Attributes:
      env: id of the task.
      models: those that a benchmark looks at; the first one's environment is compiled, others lend it their numbers.
      policies: by label.
      quality: what the task calls its quality.
      pictures: title of the picture of a policy's first episode, by label.
      own: further options of a policy that go with the model.
    """

    env: str
    models: tuple[str, ...]
    policies: Mapping[str, Entry]
    quality: str
    pictures: Mapping[str, str]
    own: Callable[[Entry, str], dict[str, Any]] = _of_model


_SHIPPED = {name: Entry(name) for name in OF_MODEL}
_ALONE, _SWARM = {"topology": "single"}, {"topology": "swarm"}
LINEUPS = {
    lineup.env: lineup
    for lineup in (
        Lineup(
            "Search-v0",
            ("strong", "weak"),
            {
                "random": Entry("random"),
                "single": Entry("single"),
                **_SHIPPED,
                **{f"swarm-{n}-{brief}": Entry("swarm", {"n": n, "brief": brief}) for n in WIDTHS for brief in BRIEFS},
                "swarm-10-standard": Entry("swarm", {"n": 10, "brief": "standard"}),
                "swarm-256-standard": Entry("swarm", {"n": 256, "brief": "standard"}),
            },
            "item-F1",
            {
                "single": "One agent does it all",
                "swarm-12-standard": "A swarm of 12 searchers",
                "swarm-256-standard": "A swarm of 256 searchers",
            },
        ),
        Lineup(
            "Math-v0",
            ("r1-7b",),
            {
                "random": Entry("random"),
                "single": Entry("single", where=_ALONE),
                **_SHIPPED,
                "vote-8": Entry("vote", {"n": 8}, _SWARM),
                "solve-verify-3": Entry("solve_verify", {"k": 3}),
                "chain": Entry("chain"),
                "chain-cue": Entry("chain", {"cue": True}),
            },
            "share answered right",
            {"solve-verify-3": "Solve and verify", "vote-8": "A vote of 8 solvers"},
        ),
        Lineup(
            "DataScience-v0",
            ("qwen3-4b",),
            {
                "random": Entry("random"),
                "single": Entry("single", where=_ALONE),
                **_SHIPPED,
                "chain": Entry("chain"),
                "chain-note": Entry("chain", {"note": "standard"}),
                "chain-note-check": Entry("chain", {"note": "standard", "brief": "detailed", "check": True}),
            },
            "relative performance",
            {"chain": "Engineer, modeler, analyst"},
            _scientists,
        ),
    )
}


def place(env: str, preset: str, model: str, label: str) -> Any:
    """The environment in which a policy of a line-up plays."""
    return made(env, preset=preset, model=model, **LINEUPS[env].policies[label].where)


def cell(env: Any, preset: str, model: str, what: str, seed: int, settings: Mapping[str, Any]) -> Cell:
    """A cell: `what` stands in its id, and what a resume compares is the environment's."""
    topology = env.options["topology"]
    usual = topology == made(env.id, preset=preset, model=model).options["topology"]
    where = f"{env.id} {preset}" if usual else f"{env.id} {preset} {topology}"
    provenance = {f"{env.id} version": env.version, f"{where} harness": env.harness.digest}
    settings = {"env": env.id, "preset": preset, "model": model, **settings}
    return Cell(f"{env.id}.{preset}.{model}.{what}.s{seed}", seed, settings, provenance)


def policy_cell(
    env: str,
    preset: str,
    model: str,
    label: str,
    seed: int,
    episodes: int,
    picture: bool = False,
    measured: bool = True,
) -> Cell:
    """One policy with one model under one seed; `picture`: with a picture of the first episode.

    A cell that is not measured serves its picture only and stays out of the tables.
    """
    lineup = LINEUPS[env]
    choose("policy", label, lineup.policies)
    whole("episodes", episodes, 1, 100_000)
    settings: dict[str, Any] = {"policy" if measured else "shown": label, "episodes": episodes}
    if picture:
        title = lineup.pictures.get(label, label)
        settings["picture"] = f"{title}: {env}, {preset}, {model}"
    return cell(place(env, preset, model, label), preset, model, label, seed, settings)


def policy_of(env: Any, label: str, model: str) -> Any:
    """The policy that a label stands for."""
    import ddpomdp

    lineup = LINEUPS[env.id]
    entry = lineup.policies[label]
    return ddpomdp.policy(entry.policy, env, **entry.options, **lineup.own(entry, model))


def run(cell: Cell) -> Output:
    """Play the episodes of a cell, and draw the first one where the cell says so."""
    import jax

    from ddpomdp.bench import episode

    setting = cell.settings
    label = setting["policy"] if "policy" in setting else setting["shown"]
    lineup = LINEUPS[setting["env"]]
    env = place(lineup.env, setting["preset"], lineup.models[0], label)
    numbers = place(lineup.env, setting["preset"], setting["model"], label).params
    policy = policy_of(env, label, setting["model"])
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    played = episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)
    rows = episode.rows(played)
    if "picture" not in setting:
        return Output(rows)
    first = rows[0]
    quality = lineup.quality[0].upper() + lineup.quality[1:]
    caption = f"{quality} {first['quality']:.2f}, {first['births']} agents born, {first['tokens']:,} tokens."
    return Output(rows, (Picture(setting["picture"], episode.draw(played, env), caption),))
