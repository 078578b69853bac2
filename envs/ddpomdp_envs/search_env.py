"""Search-v0 as users make it: presets, options and scripted policies around the task in search.py."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.env import Env
from ddpomdp.harness import BRIEFS, DELEGATE, EVEN, SELECTORS, SPAWN, WAIT_FOR, Harness, core_tools, rules_offered
from ddpomdp.options import choose, indices, number, resolve, truth, whole
from ddpomdp.params import Charges, Params, Reading, reward_spec, service
from ddpomdp.policies import Script
from ddpomdp.pytree import replace
from ddpomdp.rules import Config
from ddpomdp.timestep import TimeStep
from ddpomdp.topology import topology
from ddpomdp_envs.search import CHECKED, MODELS, RULES, Search, search_params

ID, VERSION = "Search-v0", "0.3.0"
LONG_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 64, 128, 256)
LONG_CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, EVEN)

DEFAULTS: dict[str, Any] = {
    "topology": "swarm",
    "model": "strong",
    "reward": "outcome",
    "frozen_roles": (),
    "capacity": 16,
    "num_subtasks": 48,
    "claims_per_row": 4,
    "observed_claims": 4,
    "roster": 8,
    "max_ticks": 256,
    "max_turns": None,
    "max_tokens": None,
    "poison": 0.05,
    "unanswerable": 0.15,
    "correlation": 0.0,
    "injection": 0.0,
    "obey": 0.3,
    "lead_blocks": True,
    "idle_ms": 1_000,
    "wait_limit_ms": 600_000,
    "price_token": 1e-6,
    "price_second": 1e-4,
    "counts": (1, 2, 4, 8, 12),
    "chunks": (4, EVEN),
    "delegate_chunks": (EVEN,),
    "delegate_briefs": ("standard",),
    "strict_order": False,
}

_LONG = {
    "counts": LONG_COUNTS,
    "chunks": LONG_CHUNKS,
    "delegate_chunks": LONG_CHUNKS,
    "delegate_briefs": BRIEFS,
    "roster": 16,
}
_LARGE = {**_LONG, "claims_per_row": 2}
_CLEAN = {"poison": 0.0, "unanswerable": 0.0}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"capacity": 4, "num_subtasks": 6, "claims_per_row": 2, "roster": 4, "max_ticks": 32, **_CLEAN}
    | {"counts": (1, 2, 3), "chunks": (2, EVEN)},
    "small": {},
    "calibration": {**_LONG, **_CLEAN, "capacity": 64, "max_ticks": 320},
    "k2.5": {**_LARGE, "capacity": 101, "num_subtasks": 128, "max_ticks": 1_500, "max_turns": 1_500},
    "k2.6": {**_LARGE, "capacity": 301, "num_subtasks": 512, "max_ticks": 4_000, "max_turns": 4_000},
    "stress": {**_LARGE, **_CLEAN, "capacity": 300, "num_subtasks": 512, "max_ticks": 4_000},
}


def make_env(**given: Any) -> Env:
    """Search-v0; see the card for options. ValueError names what was got and what is allowed."""
    options = resolve(ID, DEFAULTS, PRESETS, given)
    choose("model", options["model"], MODELS)
    spec = reward_spec(options["reward"])
    for name, low, high in (
        ("capacity", 1, 4_096),
        ("num_subtasks", 1, 8_192),
        ("observed_claims", 1, 16),
        ("roster", 1, 24),
        ("max_ticks", 1, 100_000),
        ("idle_ms", 1, 600_000),
        ("wait_limit_ms", 1, 100_000_000),
    ):
        whole(name, options[name], low, high)
    for name in ("max_turns", "max_tokens"):
        whole(name, options[name], 1, 2_000_000_000, none=True)
    for name in ("poison", "unanswerable", "correlation", "injection", "obey"):
        number(name, options[name], 0.0, 1.0)
    for name in ("price_token", "price_second"):
        number(name, options[name], 0.0, 1e6)
    for name in ("lead_blocks", "strict_order"):
        truth(name, options[name])
    if options["claims_per_row"] not in (1, 2, 4, 8, 16):
        raise ValueError(f"claims_per_row: got {options['claims_per_row']!r}, allowed: 1, 2, 4, 8, 16")
    row = topology(options["topology"], Search.roles)
    task = Search(
        options["num_subtasks"],
        options["claims_per_row"],
        options["observed_claims"],
        injects=options["injection"] > 0,
    )
    frozen = indices("frozen_roles", options["frozen_roles"], task.roles[1:], task.roles)
    workers = task.spawnable[:1] if row.alike else task.spawnable
    spawnable = (*workers, *(("lead",) if row.sub_leads else ())) if row.spawn else ()
    rules = CHECKED if row.checked else RULES
    counts = _values("counts", options["counts"], numbers=range(1, 4_097))
    chunks = _values("chunks", options["chunks"], numbers=range(1, 8_193), words=(EVEN,))
    delegate_chunks = _values("delegate_chunks", options["delegate_chunks"], numbers=range(1, 8_193), words=(EVEN,))
    briefs = _values("delegate_briefs", options["delegate_briefs"], words=BRIEFS)
    core = core_tools(
        spawnable=spawnable,
        counts=counts,
        chunks=chunks,
        delegate_chunks=delegate_chunks,
        delegate_briefs=briefs,
        rules=rules,
        roster=options["roster"] if row.spawn else 0,
    )
    rows_of = lambda values: tuple(-1 if value == EVEN else value for value in values)  # noqa: E731
    offered = {
        (SPAWN, "role"): tuple(task.roles.index(name) for name in spawnable) or (1,),
        (SPAWN, "count"): counts,
        (SPAWN, "chunk"): rows_of(chunks),
        (SPAWN, "brief"): range(len(BRIEFS)),
        (DELEGATE, "chunk"): rows_of(delegate_chunks),
        (DELEGATE, "brief"): tuple(BRIEFS.index(name) for name in briefs),
    } | rules_offered(rules, RULES)
    harness = Harness(
        tools=(*core, *task.tools),
        roles=task.roles,
        spawnable=spawnable,
        topology=row.numbers(),
        limits=tuple((name, options[name]) for name in _LIMITS),
    )
    capacity = options["capacity"]
    leads = 1 + 4 * capacity if row.sub_leads else 1
    config = Config(
        capacity=capacity,
        max_lives=(leads, 4 * capacity, 4 * capacity),
        max_ticks=options["max_ticks"],
        max_turns=options["max_turns"],
        max_tokens=options["max_tokens"],
        roster=options["roster"],
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


_LIMITS = ("capacity", "max_ticks", "max_turns", "max_tokens", "lead_blocks", "idle_ms", "wait_limit_ms")


def make_params(options: dict[str, Any], weights: dict[str, Any]) -> Params:
    """The numbers of an environment as arrays."""
    model = MODELS[options["model"]]
    return Params(
        weights=weights,
        price_token=jnp.float32(options["price_token"]),
        price_second=jnp.float32(options["price_second"]),
        service=service(idle_ms=options["idle_ms"], wait_limit_ms=options["wait_limit_ms"]),
        charges=Charges(
            brief_tokens=jnp.asarray([10, 20, 40], jnp.int32),
            plan_tokens=jnp.int32(round(250 * model["plan"])),
            plan_steps=jnp.int32(round(1000 * model["plan"])),
            child_steps=jnp.int32(100),
            hand_tokens=jnp.int32(30),
            send_tokens=jnp.int32(20),
            claim_tokens=jnp.asarray([8, 15], jnp.int32),
            despawn_tokens=jnp.int32(20),
            aggregate_tokens=jnp.int32(50),
            row_tokens=jnp.int32(10),
            aggregate_steps=jnp.int32(1000),
        ),
        reading=Reading(
            per_message=_in_grains(model["per_message"]),
            per_claim=_in_grains([0.5 * model["per_claim"], model["per_claim"]]),
            capacity=jnp.float32(model["capacity"]),
        ),
        task=search_params(
            options["model"],
            poison=options["poison"],
            unanswerable=options["unanswerable"],
            correlation=options["correlation"],
            injection=options["injection"],
            obey=options["obey"],
        ),
    )


def _values(name: str, values: Any, numbers: range = range(0), words: tuple[str, ...] = ()) -> tuple:
    ok = lambda v: v in words if isinstance(v, str) else isinstance(v, int) and not isinstance(v, bool) and v in numbers  # noqa: E731
    several = isinstance(values, list | tuple) and values and all(ok(v) for v in values)
    if not several or len(set(values)) != len(values):
        allowed = [f"{numbers[0]}..{numbers[-1]}"] if len(numbers) else []
        raise ValueError(f"{name}: got {values!r}, allowed: distinct values of {', '.join((*allowed, *words))}")
    return tuple(values)


# Scripted policies -------------------------------------------------------------------------------------------------


def single(env: Env, rule: str = "majority", rows: int | None = None) -> Script:
    """The lead searches every row itself, merges and stops.

    Args:
      env: the environment.
      rule: rule of aggregation.
      rows: the first so many rows only; None: all.
    """
    harness = env.harness
    choose("rule", rule, RULES)
    whole("rows", rows, 1, env.spec.num_subtasks, none=True)
    turns = [harness.turn("search"), harness.turn("aggregate", rule=rule), harness.turn("stop")]
    script = _script(env, turns, repeated=(0,))
    return script if rows is None else FirstRows(env, script.lines, script.repeated, rows)


@dataclass(frozen=True)
class FirstRows(Script):
    """A script whose root searches no more once it has done its first `rows` rows."""

    rows: int = field(default=1, compare=False)

    def init(self, env: Env) -> Any:
        """The script's parameters and int32[] rows."""
        return super().init(env), jnp.int32(self.rows)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """As the script, `search` not being legal for a root that has done its rows."""
        script, rows = params
        share = ts.observation.self[:, self.env.spec.self_features.index("rows_done")]
        enough = (ts.uid == 0) & (jnp.rint(share * self.env.spec.num_subtasks) >= rows)
        tools = jnp.where(enough, ts.legal.tools & ~(1 << self.env.harness.tool("search")), ts.legal.tools)
        return super().act(script, key, carry, replace(ts, legal=replace(ts.legal, tools=tools)))


def swarm(
    env: Env,
    n: int = 12,
    brief: str = "standard",
    chunk: int | str = EVEN,
    redundancy: int = 1,
    rule: str = "majority",
    *,
    spread: bool = False,
    lead_rows: int = 0,
    rounds: Sequence[str] | str = (),
    wait: str = "all",
    as_they_come: bool = False,
) -> Script:
    """Spawn `n` searchers, wait, read, hand rows out again, merge, stop.

    `n` is made of the counts the harness offers, largest first; with several spawns an even split becomes explicit.

    Args:
      env: the environment.
      n: searchers.
      brief: level of their brief.
      chunk: rows of each, or "even".
      redundancy: how many searchers get each row: all rows are handed out again `redundancy` - 1 times.
      rule: rule of aggregation.
      spread: small spawns come first, with an offered chunk of about an even share; the largest shares the rest evenly.
      lead_rows: most rows that stay with the lead, which searches them from the first return on.
      rounds: what is handed out after that: a selector of `delegate` for each further round.
      wait: what the lead waits for before it reads and hands out again. At the end it waits for all.
      as_they_come: at the end each return is read when it arrives, a reading per searcher, instead of all together.
    """
    harness = env.harness
    _needs_spawning(env, "swarm")
    whole("n", n, 1, env.spec.capacity - 1 if env.spec.capacity > 1 else 1)
    whole("redundancy", redundancy, 1, 10_000)
    whole("lead_rows", lead_rows, 0, env.spec.num_subtasks - 1)
    choose("brief", brief, BRIEFS)
    choose("rule", rule, RULES)
    choose("wait", wait, WAIT_FOR)
    rounds = (rounds,) if isinstance(rounds, str) else tuple(rounds)
    for selector in rounds:
        choose("rounds", selector, SELECTORS)
    truth("spread", spread)
    if spread and (lead_rows or chunk != EVEN):
        raise ValueError(f"spread: got True with lead_rows {lead_rows}, chunk {chunk!r}; allowed with 0, {EVEN}")
    parts = _parts(env, n, chunk, spread, lead_rows)
    lines = [harness.turn("spawn", role="searcher", count=count, chunk=rows, brief=brief) for count, rows in parts]
    wait_for = {kind: harness.turn("wait", **{"for": kind}) for kind in WAIT_FOR}
    merge = harness.turn("aggregate", rule=rule)
    repeated = ()
    if lead_rows:  # a lead with children at work may search once a return waits to be read
        lines += [wait_for["one"], harness.turn("search")]
        repeated = (len(lines) - 1,)
    level = {"brief": brief} if len(env.options["delegate_briefs"]) > 1 else {}
    even = {"chunk": EVEN} if len(env.options["delegate_chunks"]) > 1 else {}
    for selector in (*("again",) * (redundancy - 1), *rounds):
        lines += [wait_for[wait], merge, harness.turn("delegate", to="all_idle", rows=selector, **level, **even)]
    truth("as_they_come", as_they_come)
    last = [wait_for["one"], merge] * n if as_they_come else [wait_for["all"], merge]
    return _script(env, [*lines, *last, harness.turn("stop")], repeated)


def _parts(env: Env, n: int, chunk: int | str, spread: bool, lead_rows: int) -> list[tuple[int, int | str]]:
    """(count, chunk) of each spawn of a swarm."""
    offered, numbers = env.options["counts"], sorted(c for c in env.options["chunks"] if c != EVEN)
    counts, left = [], n
    while left:
        fitting = [count for count in offered if count <= left]
        if not fitting:
            raise ValueError(f"n: {n} cannot be made of the counts {offered}")
        counts.append(max(fitting))
        left -= counts[-1]
    need = -(-(env.spec.num_subtasks - lead_rows) // n)
    if spread and len(counts) > 1:
        if not numbers or EVEN not in env.options["chunks"]:
            raise ValueError(f"spread: got True, allowed where chunks has a number and {EVEN}: {env.options['chunks']}")
        share = max((number for number in numbers if number <= need), default=numbers[0])
        *small, last = reversed(counts)
        return [*((count, share) for count in small), (last, EVEN)]
    if chunk == EVEN and (len(counts) > 1 or lead_rows):
        fits = [number for number in numbers if number >= need]
        if not fits:
            raise ValueError(
                f"n: {n} takes {len(counts)} spawns and no chunk in {env.options['chunks']} has {need} rows"
            )
        chunk = fits[0]
    return [(count, chunk) for count in counts]


def heuristic(env: Env, model: str | None = None) -> Script:
    """The best swarm that a grid search found for the model: `python -m ddpomdp_envs.tune_search`.

    It was tuned for preset `small`, topology `swarm`, reward `outcome`. Where its team does not fit, the number of
    searchers nearest to it is taken that does, without rows of the lead where the harness has no chunk for that.

    Args:
      env: the environment.
      model: whose swarm; the environment's own model if None.
    """
    _needs_spawning(env, "heuristic")
    models = tuned()["models"]
    model = env.options["model"] if model is None else model
    choose("model", model, models)
    best = models[model]["options"]
    plain = {name: value for name, value in best.items() if name not in ("spread", "lead_rows")}
    widths = sorted(range(1, max(2, env.spec.capacity)), key=lambda n: (abs(n - best["n"]), n))
    for options in ({**kind, "n": n} for kind in (best, plain) for n in widths):
        with suppress(ValueError):  # no such team can be made of what the harness offers
            _parts(env, options["n"], EVEN, options.get("spread", False), options.get("lead_rows", 0))
            break
    else:
        raise ValueError(f"policy 'heuristic': no team can be made of the counts {env.options['counts']}")
    return swarm(env, **options)


@cache
def tuned() -> dict[str, Any]:
    """What `tune_search` found: per model the best options with their reward, and where they come from."""
    return json.loads(resources.files("ddpomdp_envs").joinpath("tuned", "search.json").read_text(encoding="utf-8"))


def _needs_spawning(env: Env, policy: str) -> None:
    if env.options["topology"] == "single":
        raise ValueError(f"policy {policy!r} needs a topology with spawning; topology 'single' has none")


def _script(env: Env, turns: list, repeated: tuple[int, ...] = ()) -> Script:
    return Script(env, tuple(tuple(int(token) for token in turn) for turn in turns), repeated)


POLICIES = {"single": single, "swarm": swarm, "heuristic": heuristic}


def _in_grains(load: float | list[float]) -> jax.Array:
    """Reading loads as multiples of 2**-14, so that their sums are exact in f32, in any order and compilation."""
    return jnp.asarray(np.rint(np.asarray(load) * 2**14) / 2**14, jnp.float32)
