"""DataScience-v0 as users make it: presets, options and scripted policies around the task in datascience.py."""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.byvalue import PLACES
from ddpomdp.env import Env
from ddpomdp.harness import (
    AGGREGATE,
    BRIEFS,
    DELEGATE,
    FIRST_TASK_TOOL,
    SELECTORS,
    SPAWN,
    STOP,
    Harness,
    core_tools,
    rules_offered,
)
from ddpomdp.options import UsageError, choose, indices, number, resolve, truth, whole
from ddpomdp.params import Charges, Params, Reading, reward_spec, service
from ddpomdp.policies import Script, lines_of
from ddpomdp.pytree import replace
from ddpomdp.rules import Config
from ddpomdp.timestep import TimeStep
from ddpomdp.topology import CREW, topology
from ddpomdp_envs.datascience import (
    CHECKED,
    DETAIL_TOKENS,
    DETAILS,
    MODELS,
    ROLES,
    RULES,
    DataScience,
    Habits,
    science_params,
    work_rule,
)

ID, VERSION = "DataScience-v0", "0.2.0"
TOPOLOGIES = ("single", "swarm", "planner_executor_critic", "centralized", "managed")
CHAIN_CAP, SINGLE_CAP = 4, 12  # task calls per hand-out
LONG_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 64)

DEFAULTS: dict[str, Any] = {
    "topology": "planner_executor_critic",
    "model": "qwen3-4b",
    "reward": "outcome",
    "frozen_roles": (),
    "capacity": 16,
    "num_subtasks": 4,
    "claims_per_row": 32,
    "observed_claims": 4,
    "roster": 4,
    "max_ticks": 256,
    "max_turns": None,
    "max_tokens": None,
    "turn_cap": None,
    "load": 1.0,
    "sigma_h": 0.6,
    "context_limit": 24_576,
    "planted": False,
    "lead_blocks": True,
    "idle_ms": 1_000,
    "wait_limit_ms": 600_000,
    "price_token": 5e-6,
    "price_second": 1e-4,
    "counts": (1, 2, 3, 4),
    "strict_order": False,
}
_LARGE = {"claims_per_row": 16, "roster": 16, "counts": LONG_COUNTS}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"capacity": 4, "num_subtasks": 2, "roster": 4, "max_ticks": 64, "sigma_h": 0.0, "claims_per_row": 16}
    | {"counts": (1, 2)},
    "small": {},
    "calibration": {"capacity": 4, "num_subtasks": 1, "roster": 4, "max_ticks": 96, "counts": (1,)},
    "k2.5": {**_LARGE, "capacity": 101, "num_subtasks": 32, "max_ticks": 1_500, "max_turns": 1_500},
    "k2.6": {**_LARGE, "capacity": 301, "num_subtasks": 96, "max_ticks": 4_000, "max_turns": 4_000},
    "stress": {**_LARGE, "capacity": 300, "num_subtasks": 96, "max_ticks": 4_000},
}


def make_env(**given: Any) -> Env:
    """DataScience-v0; see the card for options. ValueError names what was got and what is allowed."""
    options = resolve(ID, DEFAULTS, PRESETS, given)
    choose("model", options["model"], MODELS)
    spec = reward_spec(options["reward"])
    row = topology(options["topology"], ROLES, TOPOLOGIES)
    alone = row.name == "single"
    if options["turn_cap"] is None:
        options["turn_cap"] = SINGLE_CAP if alone else CHAIN_CAP
    _check(options)
    capacity = options["capacity"]
    if row.crew and capacity < 1 + CREW:
        raise UsageError(f"capacity: got {capacity}, topology {row.name!r} needs {1 + CREW} at least")
    task = DataScience(
        options["num_subtasks"],
        options["claims_per_row"],
        passes=capacity,
        alone=alone,
        tunes=MODELS[options["model"]].tunes,
    )
    spawnable = task.spawnable if row.spawn else ()
    rules = CHECKED if row.checked else RULES
    roster = CREW if row.crew else options["roster"]
    core = core_tools(
        spawnable=spawnable,
        counts=options["counts"],
        chunks=(1,),
        delegate_chunks=(1,),
        delegate_briefs=BRIEFS,
        rules=rules,
        roster=roster if row.spawn or row.crew else 0,
        crew=row.crew,
        details=DETAILS,
    )
    offered = {
        (SPAWN, "role"): tuple(ROLES.index(name) for name in spawnable) or (1,),
        (SPAWN, "count"): options["counts"],
        (SPAWN, "chunk"): (1,),
        (SPAWN, "brief"): range(len(BRIEFS)),
        (DELEGATE, "chunk"): (1,),
        (DELEGATE, "brief"): range(len(BRIEFS)),
    } | rules_offered(rules, RULES)
    harness = Harness(
        tools=(*core, *task.tools),
        roles=ROLES,
        spawnable=spawnable,
        topology=row.numbers(),
        limits=tuple((name, options[name]) for name in _LIMITS),
    )
    config = Config(
        capacity=capacity,
        max_lives=(1, *(4 * capacity,) * CREW),
        max_ticks=options["max_ticks"],
        max_turns=options["max_turns"],
        max_tokens=options["max_tokens"],
        roster=roster,
        observed_claims=options["observed_claims"],
        frozen_roles=indices("frozen_roles", options["frozen_roles"], ROLES[1:], ROLES),
        lead_blocks=options["lead_blocks"],
        strict_order=options["strict_order"],
    )
    return Env(
        id=ID,
        version=VERSION,
        task=task,
        harness=harness,
        topology=row,
        config=config,
        offered=offered,
        params=make_params(options, spec.arrays()),
        options=options,
    )


_LIMITS = (
    *("capacity", "max_ticks", "max_turns", "max_tokens", "lead_blocks", "idle_ms", "wait_limit_ms"),
    *("turn_cap", "context_limit"),
)


def _check(options: dict[str, Any]) -> None:
    for name, low, high in (
        ("capacity", 1, 4_096),
        ("num_subtasks", 1, 1_024),
        ("observed_claims", 1, 16),
        ("roster", 1, 24),
        ("max_ticks", 1, 100_000),
        ("turn_cap", 1, 1_000),
        ("idle_ms", 1, 600_000),
        ("wait_limit_ms", 1, 100_000_000),
        ("context_limit", 1, 10_000_000),
    ):
        whole(name, options[name], low, high)
    for name in ("max_turns", "max_tokens"):
        whole(name, options[name], 1, 2_000_000_000, none=True)
    for name, high in (("load", 10.0), ("sigma_h", 10.0), ("price_token", 1e6), ("price_second", 1e6)):
        number(name, options[name], 0.0, high)
    for name in ("lead_blocks", "strict_order", "planted"):
        truth(name, options[name])
    places, rows = options["claims_per_row"], options["num_subtasks"]
    if places not in PLACES or isinstance(places, bool) or rows * places % 32:
        allowed = [place for place in PLACES if rows * place % 32 == 0]
        raise UsageError(f"claims_per_row: got {places!r} with {rows} variants, allowed: {allowed}")
    if options["capacity"] * rows > 2**20:
        raise UsageError(f"capacity: got {options['capacity']} with {rows} variants, allowed: a product of 2**20")
    values = options["counts"]
    several = isinstance(values, list | tuple) and values
    if not several or not all(type(v) is int and 1 <= v <= 4_096 for v in values) or len(set(values)) < len(values):
        raise UsageError(f"counts: got {values!r}, allowed: distinct values of 1..4096")
    options["counts"] = tuple(values)


def make_params(options: dict[str, Any], weights: dict[str, Any]) -> Params:
    """The numbers of an environment as arrays."""
    free = jnp.zeros(len(DETAILS), jnp.int32)
    return Params(
        weights=weights,
        price_token=jnp.float32(options["price_token"]),
        price_second=jnp.float32(options["price_second"]),
        service=service(idle_ms=options["idle_ms"], wait_limit_ms=options["wait_limit_ms"]),
        charges=Charges(
            brief_tokens=jnp.asarray([50, 90, 230], jnp.int32),
            plan_tokens=jnp.int32(0),
            plan_steps=jnp.int32(0),
            child_steps=jnp.int32(100),
            hand_tokens=jnp.int32(0),
            send_tokens=jnp.int32(20),
            claim_tokens=free + 10,
            despawn_tokens=jnp.int32(20),
            aggregate_tokens=jnp.int32(50),
            row_tokens=jnp.int32(10),
            aggregate_steps=jnp.int32(1_000),
            detail_tokens=jnp.asarray(DETAIL_TOKENS, jnp.int32),
        ),
        reading=Reading(  # tokens of notes read; there is no overload law
            per_message=jnp.float32(0),
            per_claim=free.astype(jnp.float32),
            capacity=jnp.float32(1e6),
            per_detail=jnp.asarray(DETAIL_TOKENS, jnp.float32),
        ),
        task=science_params(
            options["model"],
            turn_cap=options["turn_cap"],
            load=options["load"],
            sigma_h=options["sigma_h"],
            context_limit=options["context_limit"],
            planted=options["planted"],
        ),
    )


WHOM = {"engineer": (0,), "modeler": (1,), "both": (0, 1)}  # roster rows of those asked to rework


# Scripted policies -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crew(Script):
    """A script for the root; everyone else follows the worker rule with the given habits."""

    habits: Habits = field(default_factory=lambda: Habits(jnp.int32(1)), compare=False)

    PAD = 16

    def init(self, env: Env) -> Any:
        """The script's parameters and the habits."""
        return super().init(env), jax.tree.map(jnp.asarray, self.habits)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The script's line for the root, the worker rule for the rest."""
        lines, habits = params
        turns, carry, aux = super().act(lines, key, carry, ts)
        is_root = ((ts.uid == 0) & ts.alive)[:, None]
        return jnp.where(is_root, turns, _rule(self.env, ts, habits)), carry, aux


class Variants(Crew):
    """A crew with room for rounds of rework, so that any number of them is one program."""

    PAD = 48


@dataclass(frozen=True)
class Alone:
    """A lone lead that works by the rule, then picks and stops."""

    env: Env
    habits: Habits = field(compare=False)

    def init(self, env: Env) -> Habits:
        """The habits."""
        return jax.tree.map(jnp.asarray, self.habits)

    def carry(self, env: Env) -> tuple:
        """No memory."""
        return ()

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The rule's task tool, else aggregate, then stop."""
        rule = _rule(self.env, ts, params)
        last = ts.observation.last_result[:, 0]
        end = jnp.where(last == AGGREGATE, STOP, AGGREGATE)
        end = jnp.where((ts.legal.tools >> end) & 1 == 1, end, STOP)
        tool = jnp.where((ts.uid == 0) & ts.alive & (rule[:, 0] < FIRST_TASK_TOOL), end, rule[:, 0])
        return rule.at[:, 0].set(tool), carry, {}


def _rule(env: Env, ts: TimeStep, habits: Habits) -> jax.Array:
    task: Any = env.rules.task
    own = ts.observation.self[:, -len(task.self_features) :]
    return work_rule(task, env.harness, ts.legal, own, habits)


def chain(
    env: Env,
    note: str = "list",
    brief: str = "standard",
    check: bool = False,
    look: bool = False,
    tune: int | None = None,
    rule: str = "last",
) -> Crew:
    """Engineer, modeler, analyst, one after the other; each returns when it believes its files saved, or at the cap.

    Args:
      env: the environment, topology `planner_executor_critic`.
      note: detail of returns and messages, which is the level of the schema note.
      brief: of every delegation; a detailed one is a standard note.
      check: check_artifacts whenever something was written.
      look: downstream roles begin with check_artifacts.
      tune: tunes of the modeler; None: those of the model.
      rule: rule of aggregation.
    """
    _needs(env, "chain", "planner_executor_critic")
    choose("note", note, DETAILS)
    choose("brief", brief, BRIEFS)
    choose("rule", rule, RULES)
    read = [env.harness.turn("wait", **{"for": "all"}), env.harness.turn("aggregate", rule=rule)]
    lines = []
    for role, rows in ((1, "next"), (2, "again"), (3, "again")):
        if role > 1:
            lines.append(env.harness.turn("message", to=f"row_{role - 1}", claims="all", detail=note))
        lines += [_delegate(env, role, rows, brief), *read]
    return Crew(env, lines_of([*lines, env.harness.turn("stop")]), habits=_habits(env, check, look, tune, note))


def variants(
    env: Env,
    n: int = 3,
    rule: str = "verdict",
    rework: int = 1,
    whom: str = "both",
    brief: str = "detailed",
    check: bool = False,
    tune: int | None = None,
) -> Crew:
    """One engineer, `n` modelers with a variant each, a pick by score, one analyst on the pick; then rounds of rework.

    In a round the lead tells each of those asked what it knows and hands them their row again: the engineer the first
    one, the others the pick; the analyst is last. Who has nothing to mend returns at once. With rework, workers hand
    back what they do not find; without, they try to patch it.

    Args:
      env: the environment, topology `swarm`.
      n: modelers, one of the offered counts; their rows begin after the engineer's.
      rule: rule of picking.
      rework: rounds.
      whom: who is asked before the analyst in a round: engineer, modeler (the first one) or both.
      brief: of every hand-out; a detailed one is a standard note.
      check: check_artifacts whenever something was written.
      tune: tunes of the modelers; None: those of the model.
    """
    _needs(env, "variants", "swarm")
    for name, value, allowed in (("rule", rule, RULES), ("brief", brief, BRIEFS), ("whom", whom, WHOM)):
        choose(name, value, allowed)
    whole("rework", rework, 0, 1_000)
    if isinstance(n, bool) or n not in env.options["counts"] or n + 3 > env.spec.capacity:
        raise UsageError(f"n: got {n!r}, allowed: one of {env.options['counts']}, {env.spec.capacity - 3} at most")
    if rework and n + 2 > env.options["roster"]:
        raise UsageError(f"n: got {n} with rework, allowed: {env.options['roster'] - 2}, as the roster has to list all")
    read = [env.harness.turn("wait", **{"for": "all"}), env.harness.turn("aggregate", rule=rule)]
    lines = []
    for role, count in (("engineer", 1), ("modeler", n), ("analyst", 1)):
        lines += [env.harness.turn("spawn", role=role, count=count, brief=brief), *read]
    # All are idle and read by then, so that a child's roster row is its uid less one.
    asked = [*WHOM[whom], n + 1]
    for row in asked * rework:
        lines.append(env.harness.turn("message", to=f"row_{row}", claims="all", detail="list"))
        lines += [env.harness.turn("delegate", to=f"row_{row}", rows="again", brief=brief), *read]
    habits = replace(_habits(env, check, False, tune, "list"), hand_back=jnp.bool_(rework > 0))
    return Variants(env, lines_of([*lines, env.harness.turn("stop")]), habits=habits)


def single(env: Env, tune: int | None = None, check: bool = False) -> Alone:
    """A lone agent does everything by itself, then picks and stops.

    Args:
      env: the environment, topology `single`.
      tune: tunes after training; None: those of the model.
      check: check_artifacts whenever something was written.
    """
    _needs(env, "single", "single")
    return Alone(env, _habits(env, check, False, tune, "list"))


def heuristic(env: Env, model: str | None = None) -> Crew:
    """The best `chain` that a grid search found for the model: `python -m ddpomdp_envs.tune_datascience`.

    It was tuned for preset `small`, topology `planner_executor_critic`, reward `outcome`.

    Args:
      env: the environment, topology `planner_executor_critic`.
      model: whose team; the environment's own model if None, or the tuned one whose scripts crash most alike.
    """
    _needs(env, "heuristic", "planner_executor_critic")
    models = tuned()["models"]
    model = str(env.options["model"] if model is None else model)
    choose("model", model, MODELS)
    rate = lambda name: sum(eps) / 2 if isinstance(eps := MODELS[name].eps, tuple) else eps  # noqa: E731
    return chain(env, **models[min(models, key=lambda name: abs(rate(name) - rate(model)))]["options"])


def _habits(env: Env, check: bool, look: bool, tune: int | None, note: str) -> Habits:
    for name, value in (("check", check), ("look", look)):
        truth(name, value)
    whole("tune", tune, 0, 1_000, none=True)
    tune = MODELS[env.options["model"]].tunes if tune is None else tune
    return Habits(jnp.int32(tune), jnp.bool_(check), jnp.bool_(look), jnp.bool_(False), jnp.int32(DETAILS.index(note)))


def _needs(env: Env, policy: str, name: str) -> None:
    if env.options["topology"] != name:
        raise UsageError(f"policy {policy!r} needs topology {name!r}; got {env.options['topology']!r}")


def _delegate(env: Env, role: int, rows: str, brief: str) -> Any:
    """Work for a member of the crew: while all are idle, its roster row is that of its uid."""
    choose("rows", rows, SELECTORS)
    return env.harness.turn("delegate", to=f"row_{role - 1}", rows=rows, brief=brief)


@cache
def tuned() -> dict[str, Any]:
    """What the grid search found: per model the best policy with its reward, and where it comes from."""
    return json.loads(resources.files("ddpomdp_envs").joinpath("tuned", "datascience.json").read_text(encoding="utf-8"))


POLICIES = {"chain": chain, "variants": variants, "single": single, "heuristic": heuristic}
