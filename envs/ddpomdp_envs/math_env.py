"""Math-v0 as users make it: presets, options and scripted policies around the task in math.py."""

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
    BRIEFS,
    DELEGATE,
    EVEN,
    FIRST_TASK_TOOL,
    MESSAGE,
    RETURN,
    SELECTORS,
    SPAWN,
    Harness,
    core_tools,
    rules_offered,
)
from ddpomdp.options import UsageError, choose, indices, number, resolve, truth, whole
from ddpomdp.params import Charges, Params, Reading, reward_spec, service
from ddpomdp.policies import Script, lines_of
from ddpomdp.rules import Config
from ddpomdp.timestep import TimeStep
from ddpomdp.topology import CREW, topology
from ddpomdp_envs.math import CHECKED, MODELS, ROLES, RULES, VERIFIERS, Math, math_params

ID, VERSION = "Math-v0", "0.2.0"
TOPOLOGIES = ("single", "swarm", "planner_executor_critic", "centralized", "debate", "managed", "independent")
LONG_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 64, 128, 256)

DEFAULTS: dict[str, Any] = {
    "topology": "planner_executor_critic",
    "model": "r1-7b",
    "verifier": "small",
    "reward": "outcome",
    "frozen_roles": (),
    "capacity": 16,
    "num_subtasks": 4,
    "claims_per_row": 32,
    "observed_claims": 4,
    "roster": 6,
    "max_ticks": 256,
    "max_turns": None,
    "max_tokens": None,
    "fault": 0.07,
    "correlation": 0.0,
    "length_cap": None,
    "length_visible": True,
    "context_limit": 24_576,
    "oracle_form": None,
    "lead_blocks": True,
    "idle_ms": 1_000,
    "wait_limit_ms": 600_000,
    "price_token": 2.5e-7,
    "price_second": 1e-5,
    "counts": (1, 2, 4, 8, 12),
    "chunks": (1, 4, 8),
    "strict_order": False,
}
# A lone agent draws one problem's answers until it stops: small enough for the exact bound.
VOTE: dict[str, Any] = {"topology": "single", "max_turns": 14, "price_token": 1e-6, "price_second": 0.0}
VOTE_SOLVES, VOTE_TOKENS = 12, 10_000
DEBATE_PASSES = 5  # answers of each debater to each problem, at most
RUNS = ("never", "cue", "always")  # whether policy `team` asks the executor

_LARGE = {"claims_per_row": 16, "roster": 16, "model": "qwen3-4b", "counts": LONG_COUNTS}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"capacity": 4, "num_subtasks": 1, "roster": 4, "max_ticks": 32, "fault": 0.0}
    | {"counts": (1, 2, 3), "chunks": (1, 2)},
    "small": {},
    "calibration": {"capacity": 64, "num_subtasks": 1, "claims_per_row": 128, "roster": 16, "max_ticks": 320}
    | {"fault": 0.0, "counts": LONG_COUNTS, "chunks": (1, 2, 3, 4)},
    "k2.5": {**_LARGE, "capacity": 101, "num_subtasks": 32, "max_ticks": 1_500, "max_turns": 1_500}
    | {"chunks": (1, 2, 4, 8, 16, 32, 64)},
    "k2.6": {**_LARGE, "capacity": 301, "num_subtasks": 64, "max_ticks": 4_000, "max_turns": 4_000}
    | {"chunks": (1, 2, 4, 8, 16, 32, 64, 128)},
    "stress": {**_LARGE, "capacity": 300, "num_subtasks": 64, "max_ticks": 4_000}
    | {"chunks": (1, 2, 4, 8, 16, 32, 64, 128)},
}


def make_env(**given: Any) -> Env:
    """Math-v0; see the card for options. ValueError names what was got and what is allowed."""
    vote = given.get("oracle_form") == "vote"
    options = resolve(ID, DEFAULTS | (VOTE if vote else {}), PRESETS, given)
    choose("model", options["model"], MODELS)
    choose("verifier", options["verifier"], VERIFIERS)
    if options["oracle_form"] not in (None, "vote"):
        raise UsageError(f"oracle_form: got {options['oracle_form']!r}, allowed: None, vote")
    spec = reward_spec(options["reward"])
    _check(options)
    row = topology(options["topology"], ROLES, TOPOLOGIES)
    if vote and (row.name != "single" or options["num_subtasks"] != 1):
        got = f"topology {row.name!r} and {options['num_subtasks']} problems"
        raise UsageError(f"oracle_form: got 'vote' with {got}, allowed with topology 'single' and 1 problem")
    capacity = options["capacity"]
    if row.crew and capacity < 1 + CREW:
        raise UsageError(f"capacity: got {capacity}, topology {row.name!r} needs {1 + CREW} at least")
    task = Math(
        options["num_subtasks"],
        options["claims_per_row"],
        options["observed_claims"],
        passes=VOTE_SOLVES if vote else DEBATE_PASSES * capacity if row.listens else capacity,
        alone=row.name == "single",
        vote=vote,
        show=options["length_visible"] and not vote,
        max_solves=VOTE_SOLVES if vote else None,
    )
    frozen = indices("frozen_roles", options["frozen_roles"], ROLES[1:], ROLES)
    workers = task.spawnable[:1] if row.alike else task.spawnable
    spawnable = workers if row.spawn else ()
    roster = CREW if row.crew else options["roster"]
    rules = ("majority",) if vote else CHECKED if row.checked else RULES
    task.rules = rules
    core = core_tools(
        spawnable=spawnable,
        counts=options["counts"],
        chunks=options["chunks"],
        spawn_briefs=BRIEFS[:1],  # hand-over is part of delegation only
        delegate_chunks=(EVEN,),
        delegate_briefs=BRIEFS,
        rules=rules,
        roster=roster if row.spawn or row.crew else 0,
        crew=row.crew,
    )
    offered = {
        (SPAWN, "role"): tuple(ROLES.index(name) for name in spawnable) or (1,),
        (SPAWN, "count"): options["counts"],
        (SPAWN, "chunk"): options["chunks"],
        (SPAWN, "brief"): (0,),
        (DELEGATE, "chunk"): (-1,),
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
        frozen_roles=frozen,
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
    *("length_cap", "context_limit", "oracle_form"),
)


def _check(options: dict[str, Any]) -> None:
    for name, low, high in (
        ("capacity", 1, 4_096),
        ("num_subtasks", 1, 4_096),
        ("observed_claims", 1, 16),
        ("roster", 1, 24),
        ("max_ticks", 1, 100_000),
        ("idle_ms", 1, 600_000),
        ("wait_limit_ms", 1, 100_000_000),
        ("context_limit", 1, 10_000_000),
    ):
        whole(name, options[name], low, high)
    for name, high in (("max_turns", 2_000_000_000), ("max_tokens", 2_000_000_000), ("length_cap", 1_000_000)):
        whole(name, options[name], 1, high, none=True)
    for name, high in (("fault", 1.0), ("correlation", 1.0), ("price_token", 1e6), ("price_second", 1e6)):
        number(name, options[name], 0.0, high)
    for name in ("lead_blocks", "strict_order", "length_visible"):
        truth(name, options[name])
    places, problems = options["claims_per_row"], options["num_subtasks"]
    if places not in PLACES or isinstance(places, bool) or problems * places % 32:
        allowed = [place for place in PLACES if problems * place % 32 == 0]
        raise UsageError(f"claims_per_row: got {places!r} with {problems} problems, allowed: {allowed}")
    if options["capacity"] * problems > 2**20:
        raise UsageError(f"capacity: got {options['capacity']} with {problems} problems, allowed: a product of 2**20")
    for name in ("counts", "chunks"):
        values = options[name]
        several = isinstance(values, list | tuple) and values
        if not several or not all(type(v) is int and 1 <= v <= 4_096 for v in values) or len(set(values)) < len(values):
            raise UsageError(f"{name}: got {values!r}, allowed: distinct values of 1..4096")
        options[name] = tuple(values)


def make_params(options: dict[str, Any], weights: dict[str, Any]) -> Params:
    """The numbers of an environment as arrays."""
    vote = options["oracle_form"] == "vote"
    return Params(
        weights=weights,
        price_token=jnp.float32(options["price_token"] / options["num_subtasks"]),
        price_second=jnp.float32(options["price_second"]),
        service=service(idle_ms=options["idle_ms"], wait_limit_ms=options["wait_limit_ms"]),
        charges=Charges(
            brief_tokens=jnp.asarray([30, 30, 30], jnp.int32),
            plan_tokens=jnp.int32(0),
            plan_steps=jnp.int32(0),
            child_steps=jnp.int32(100),
            hand_tokens=jnp.int32(0),
            send_tokens=jnp.int32(20),
            claim_tokens=jnp.asarray([20, 1_000], jnp.int32),
            despawn_tokens=jnp.int32(20),
            aggregate_tokens=jnp.int32(50),
            row_tokens=jnp.int32(10),
            aggregate_steps=jnp.int32(1_000),
        ),
        reading=Reading(  # tokens read; there is no overload law
            per_message=jnp.float32(0),
            per_claim=jnp.asarray([20, 1_000], jnp.float32),
            capacity=jnp.float32(1e6),
        ),
        task=math_params(
            options["model"],
            options["verifier"],
            num_values=4 if vote else 8,
            length_cap=options["length_cap"],
            flat_tokens=VOTE_TOKENS if vote else 0,
            correlation=options["correlation"],
            fault=options["fault"],
            context_limit=options["context_limit"] if not vote else 10_000_000,
        ),
    )


# Scripted policies -------------------------------------------------------------------------------------------------


def single(env: Env, samples: int = 1, rule: str | None = None) -> Script:
    """A lone agent writes `samples` solutions per problem, chooses the answers and stops.

    Args:
      env: the environment, topology `single`.
      samples: passes over the problems; at most as many as the queue has.
      rule: rule of aggregation; the last answer of one sample, else the majority.
    """
    _needs(env, "single", "single")
    whole("samples", samples, 1, env.rules.passes)
    rules = env.rules.task.rules
    rule = ("last" if samples == 1 and "last" in rules else "majority") if rule is None else rule
    choose("rule", rule, rules)
    solve = _turn(env, "solve", effort="high")
    turns = [solve] * (samples * env.spec.num_subtasks)
    return _script(env, [*turns, _turn(env, "aggregate", rule=rule), env.harness.turn("stop")])


def vote(env: Env, n: int = 8, solvers: int | None = None, rule: str = "majority") -> Script:
    """`n` solutions per problem by solvers who know nothing of each other, then a vote.

    Args:
      env: the environment, topology `swarm`.
      n: solutions per problem.
      solvers: how many share the work in equal parts; `n` of them where they fit, else half as many.
      rule: rule of aggregation.
    """
    _needs(env, "vote", "swarm")
    rows, room = env.spec.num_subtasks, env.spec.capacity - 1
    whole("n", n, 1, env.rules.passes)
    if solvers is None:
        solvers = n if n <= room else n // 2
    whole("solvers", solvers, 1, max(room, 1))
    choose("rule", rule, RULES)
    chunk, rest = divmod(n * rows, solvers)
    if rest or chunk not in env.options["chunks"]:
        raise UsageError(
            f"solvers: got {solvers} for {n} solutions of {rows} problems, "
            f"allowed: equal parts of {env.options['chunks']}"
        )
    spawns = [
        env.harness.turn("spawn", role="solver", count=count, **_chunk(env, chunk)) for count in _parts(env, solvers)
    ]
    return _script(env, [*spawns, _wait(env), _turn(env, "aggregate", rule=rule), env.harness.turn("stop")])


def solve_verify(env: Env, k: int = 3, brief: str = "standard") -> Script:
    """Solve; then verify, and solve again what was rejected or has no answer, until nothing is or `k` rounds are over.

    Args:
      env: the environment, topology `planner_executor_critic`.
      k: rounds of solving; the verifier is left out of the last one.
      brief: what the solver is told of rejected answers.
    """
    _needs(env, "solve_verify", "planner_executor_critic")
    whole("k", k, 1, 1_000)
    choose("brief", brief, BRIEFS)
    read = [_wait(env), _turn(env, "aggregate", rule="last")]
    lines = [_delegate(env, "solver", "next", "short"), *read]
    checked = []
    for _ in range(1, k):
        lines += [_delegate(env, "verifier", "missing", "short"), *read]
        checked.append(len(lines))
        lines += [_delegate(env, "solver", "conflicting", brief), *read]
    return Loop(env, lines_of([*lines, env.harness.turn("stop")]), checked=tuple(checked))


def chain(env: Env, cue: bool = False, rule: str = "verdict", verify: bool = True) -> Script:
    """Solver, executor, verifier, one after the other (MathChat's order), then a choice by their evidence.

    Args:
      env: the environment, topology `planner_executor_critic`.
      cue: the executor gets only problems that look computable.
      rule: rule of the last aggregation.
      verify: whether the verifier is asked.
    """
    _needs(env, "chain", "planner_executor_critic")
    choose("rule", rule, RULES)
    for name, value in (("cue", cue), ("verify", verify)):
        truth(name, value)
    read = [_wait(env), _turn(env, "aggregate", rule="last")]
    lines = [_delegate(env, "solver", "next", "short"), *read]
    lines += [_delegate(env, "executor", "missing" if cue else "again", "detailed"), *read]
    if verify:
        lines += [_delegate(env, "verifier", "again", "detailed"), *read]
    lines[-1] = _turn(env, "aggregate", rule=rule)
    return _script(env, [*lines, env.harness.turn("stop")])


def team(
    env: Env, samples: int = 1, k: int = 1, run: str = "never", evidence: str = "short", rule: str = "verdict"
) -> Script:
    """The crew at work: samples of every problem, code runs, then rounds of verifying and solving again, then a choice.

    Args:
      env: the environment, topology `planner_executor_critic`.
      samples: passes over all problems at first.
      k: rounds of solving; a verifier stands between two of them, and open problems are solved again.
      run: whether the executor is asked after the samples: never, where the cue says so, or for every problem.
      evidence: what the verifier is given: the newest claim (short) or all (detailed).
      rule: rule of the last aggregation; the readings before it are for the board.
    """
    _needs(env, "team", "planner_executor_critic")
    whole("samples", samples, 1, env.rules.passes)
    whole("k", k, 1, 1_000)
    choose("run", run, RUNS)
    choose("evidence", evidence, BRIEFS)
    choose("rule", rule, RULES)
    read = [_wait(env), _turn(env, "aggregate", rule=rule)]
    lines, checked = [], []
    for _ in range(samples):
        lines += [_delegate(env, "solver", "next", "short"), *read]
    if run != "never":
        lines += [_delegate(env, "executor", "missing" if run == "cue" else "again", "short"), *read]
    for _ in range(1, k):
        lines += [_delegate(env, "verifier", "missing", evidence), *read]
        checked.append(len(lines))
        lines += [_delegate(env, "solver", "conflicting", "short"), *read]
    return Loop(env, lines_of([*lines, env.harness.turn("stop")]), checked=tuple(checked))


def debate(env: Env, agents: int = 4, rounds: int = 1, rule: str = "majority") -> "Debate":
    """Solvers answer, tell each other, and answer again; after the last round they return what they did not tell.

    Args:
      env: the environment, topology `debate`.
      agents: solvers; one of the offered counts, so that all are born at once.
      rounds: of telling and answering again.
      rule: rule of aggregation.
    """
    _needs(env, "debate", "debate")
    _offered("agents", agents, env.options["counts"])
    whole("agents", agents, 1, env.spec.capacity - 1)
    whole("rounds", rounds, 0, 1_000)
    choose("rule", rule, RULES)
    if agents * (rounds + 1) > env.rules.passes:
        raise UsageError(f"rounds: got {rounds} with {agents} agents, allowed: {env.rules.passes} answers in all")
    rows = (rounds + 1) * env.spec.num_subtasks
    _offered("rows of a solver", rows, env.options["chunks"])
    spawn = _turn(env, "spawn", role="solver", count=agents, chunk=rows)
    end = [_wait(env), _turn(env, "aggregate", rule=rule), env.harness.turn("stop")]
    return Debate(env, lines_of([spawn, *end]))


def checked(env: Env, n: int = 8, checks: int = 1, rule: str = "verdict") -> Script:
    """`n` solutions per problem by solvers who know nothing of each other, verdicts on the answers, then a choice.

    Args:
      env: the environment, topology `centralized`.
      n: solvers, each with one solution per problem.
      checks: verifiers, each with the newest answer to every problem.
      rule: rule of aggregation.
    """
    _needs(env, "checked", "centralized")
    whole("n", n, 1, min(env.rules.passes, env.spec.capacity - 2))
    whole("checks", checks, 1, env.spec.capacity - 1 - n)
    choose("rule", rule, CHECKED)
    rows = env.spec.num_subtasks
    _offered("rows of a solver", rows, env.options["chunks"])
    read = [_wait(env), _turn(env, "aggregate", rule=rule)]
    lines = []
    for role, number_of in (("solver", n), ("verifier", checks)):
        parts = _parts(env, number_of)
        lines += [_turn(env, "spawn", role=role, count=count, chunk=rows) for count in parts] + read
    return _script(env, [*lines, env.harness.turn("stop")])


def heuristic(env: Env, model: str | None = None) -> Script:
    """The best `team` that a grid search found for the model: `python -m ddpomdp_envs.tune_math`.

    It was tuned for preset `small`, topology `planner_executor_critic`, reward `outcome`.

    Args:
      env: the environment, topology `planner_executor_critic`.
      model: whose team; the environment's own model if None, or that whose pass rate is nearest among the tuned ones.
    """
    _needs(env, "heuristic", "planner_executor_critic")
    models = tuned()["models"]
    model = str(env.options["model"] if model is None else model)
    choose("model", model, MODELS)
    nearest = min(models, key=lambda name: abs(MODELS[name].mean - MODELS[model].mean))
    options = models[nearest]["options"]
    return team(env, **{**options, "samples": min(options["samples"], env.rules.passes)})


@dataclass(frozen=True)
class Loop(Script):
    """A script that goes to its last line before one of `checked` where no problem is open.

    A problem is open while it has no answer, or its newest answer is rejected.
    """

    checked: tuple[int, ...] = field(default=(), compare=False)

    PAD = 48  # all such scripts of a usual length are one program

    def init(self, env: Env) -> Any:
        """The script's parameters, and bool[L] of the lines before which it looks at the board."""
        lines, repeated = super().init(env)
        return lines, repeated, jnp.asarray([index in self.checked for index in range(len(lines))])

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """As the script, or its last line."""
        lines, repeated, checked = params
        names = self.env.spec.board_features.index
        board = ts.observation.board[0]
        is_open = (board[:, names("values")] == 0) | (board[:, names("newest_verdict")] < 0)
        done = ~jnp.any(is_open) & checked[carry] & (ts.uid == 0) & ~ts.blocked
        carry = jnp.where(done, lines.shape[0] - 1, carry)
        return super().act((lines, repeated), key, carry, ts)


@dataclass(frozen=True)
class Debate(Script):
    """A script for the root; solvers tell their peers after every pass over the problems, wait for mail, go on."""

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The script's line for the root, the debaters' rule for the rest."""
        turns, carry, aux = super().act(params, key, carry, ts)
        harness, spec = self.env.harness, self.env.spec
        last = ts.observation.last_result[:, 0]
        left = ts.observation.self[:, spec.self_features.index("rows_left")]
        passed = (last == FIRST_TASK_TOOL) & (left > 0) & (left % spec.num_subtasks == 0)
        said = turns[:, 0]
        for here, turn in (
            (said == RETURN, harness.turn("return", claims="new", detail="summary")),
            (passed & (said == FIRST_TASK_TOOL), harness.turn("message", to="peers", claims="new", detail="summary")),
            ((last == MESSAGE) & (said == FIRST_TASK_TOOL), harness.turn("wait")),
        ):
            turns = jnp.where((here & (ts.uid > 0))[:, None], jnp.asarray(turn), turns)
        return turns, carry, aux


def _offered(name: str, got: int, values: tuple[int, ...]) -> None:
    if isinstance(got, bool) or got not in values:
        raise UsageError(f"{name}: got {got!r}, allowed: {', '.join(map(str, values))}")


def _needs(env: Env, policy: str, name: str) -> None:
    if env.options["topology"] != name:
        raise UsageError(f"policy {policy!r} needs topology {name!r}; got {env.options['topology']!r}")


def _turn(env: Env, tool: str, **args: Any) -> Any:
    """A call; arguments with a single value are not part of the grammar."""
    names = [argument.name for argument in env.harness.tools[env.harness.tool(tool)].arguments]
    return env.harness.turn(tool, **{name: value for name, value in args.items() if name in names})


def _wait(env: Env) -> Any:
    return env.harness.turn("wait", **{"for": "all"})


def _delegate(env: Env, role: str, rows: str, brief: str) -> Any:
    """Work for a member of the crew: while all are idle, its roster row is that of its uid."""
    choose("rows", rows, SELECTORS)
    return env.harness.turn("delegate", to=f"row_{ROLES.index(role) - 1}", rows=rows, brief=brief)


def _chunk(env: Env, rows: int) -> dict[str, int]:
    return {"chunk": rows} if len(env.options["chunks"]) > 1 else {}


def _parts(env: Env, n: int) -> list[int]:
    """`n` as a sum of offered counts, largest first."""
    counts = []
    while n:
        fitting = [count for count in env.options["counts"] if count <= n]
        if not fitting:
            raise UsageError(f"solvers: {n} more cannot be made of the counts {env.options['counts']}")
        counts.append(max(fitting))
        n -= counts[-1]
    return counts


def _script(env: Env, turns: list) -> Script:
    return Script(env, lines_of(turns))


@cache
def tuned() -> dict[str, Any]:
    """What the grid search found: per model the best policy with its reward, and where it comes from."""
    return json.loads(resources.files("ddpomdp_envs").joinpath("tuned", "math.json").read_text(encoding="utf-8"))


POLICIES = {
    "single": single,
    "vote": vote,
    "solve_verify": solve_verify,
    "chain": chain,
    "team": team,
    "debate": debate,
    "checked": checked,
    "heuristic": heuristic,
}
