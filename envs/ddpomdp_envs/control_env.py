"""Additive-v0, Majority-v0 and Chain-v0 as users make them: options, presets and policies around control.py."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.harness import BRIEFS, DELEGATE, EVEN, RETURN, SPAWN, Harness, core_tools
from ddpomdp.luck import Purpose, draw, unit
from ddpomdp.options import UsageError, choose, number, resolve, truth, whole
from ddpomdp.params import Charges, Params, Reading, reward_spec, service
from ddpomdp.policies import Script, lines_of
from ddpomdp.rules import Config
from ddpomdp.topology import topology
from ddpomdp_envs.control import LAWS, ROLES, WORK, WORKER, Control, ControlParams

VERSION = "0.1.0"
TOPOLOGIES = ("single", "swarm")

DEFAULTS: dict[str, Any] = {
    "topology": "swarm",
    "reward": "outcome",
    "frozen_roles": (),
    "agents": 4,  # workers
    "num_subtasks": 8,
    "decisions": 1,  # per subtask, that count
    "irrelevant": 0,  # per subtask, that count nothing
    "chances": None,  # of a right subtask by choice; None: the law's own
    "success": 0.5,  # Chain-v0: chance that all subtasks are right under even choices, where chances is None
    "threshold": 0.5,  # Majority-v0
    "decisive": 0.0,  # Additive-v0: further weight of subtask 0
    "max_ticks": None,  # None: twice what a team needs
    "max_turns": None,
    "max_tokens": None,
    "lead_blocks": True,
    "price_token": 0.0,
    "price_second": 0.0,
    "observed_claims": 4,
    "strict_order": False,
}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"agents": 2, "num_subtasks": 4},
    "small": {},
    "long": {"agents": 8, "num_subtasks": 1_024},
    "wide": {"agents": 256, "num_subtasks": 1_024},
}
_LIMITS = ("agents", "max_ticks", "max_turns", "max_tokens", "lead_blocks")


def make_env(law: str, **given: Any) -> Env:
    """A control world; see the card for options. ValueError names what was got and what is allowed."""
    options = resolve(law, DEFAULTS, PRESETS, given)
    _check(law, options)
    row = topology(options["topology"], ROLES, TOPOLOGIES)
    agents = options["agents"] if row.spawn else 0
    needed = -(-options["num_subtasks"] // max(agents, 1)) * (options["decisions"] + options["irrelevant"]) + 8
    if options["max_ticks"] is None:
        options["max_ticks"] = 2 * needed
    task = Control(
        law,
        options["num_subtasks"],
        decisions=options["decisions"],
        irrelevant=options["irrelevant"],
        alone=not row.spawn,
    )
    spawnable = task.spawnable if row.spawn else ()
    counts = tuple(sorted({2**i for i in range(agents.bit_length()) if 2**i <= agents} | {agents})) if agents else (1,)
    roster = min(agents, 8)
    core = core_tools(
        spawnable=spawnable,
        counts=counts,
        chunks=(EVEN,),
        spawn_briefs=("standard",),
        delegate_chunks=(EVEN,),
        delegate_briefs=("standard",),
        rules=task.rules,
        roster=roster,
    )
    level = (BRIEFS.index("standard"),)
    offered = {
        (SPAWN, "role"): (WORKER,),
        (SPAWN, "count"): counts,
        (SPAWN, "chunk"): (-1,),
        (SPAWN, "brief"): level,
        (DELEGATE, "chunk"): (-1,),
        (DELEGATE, "brief"): level,
    }
    harness = Harness(
        tools=(*core, *task.tools),
        roles=ROLES,
        spawnable=spawnable,
        topology=row.numbers(),
        limits=tuple((name, options[name]) for name in _LIMITS),
    )
    config = Config(
        capacity=1 + agents,
        max_lives=(1, max(4 * agents, 1)),
        max_ticks=options["max_ticks"],
        max_turns=options["max_turns"],
        max_tokens=options["max_tokens"],
        roster=max(roster, 1),
        observed_claims=options["observed_claims"],
        frozen_roles=(WORKER,) if options["frozen_roles"] else (),
        lead_blocks=options["lead_blocks"],
        strict_order=options["strict_order"],
    )
    return Env(
        id=law,
        version=VERSION,
        task=task,
        harness=harness,
        topology=row,
        config=config,
        offered=offered,
        params=make_params(law, options, reward_spec(options["reward"]).arrays()),
        options=options,
    )


additive, majority, chain = (partial(make_env, law) for law in LAWS)


def chances(law: str, options: dict[str, Any]) -> tuple[float, float]:
    """Chance of a right subtask by choice: the option, or the law's own.

    Additive-v0 and Majority-v0: 0.3 and 0.7, even odds under even choices. Chain-v0: mean mu = success^(1/M), so that
    the chance of the whole chain does not depend on its length, and 1/2 (1 - mu) to either side.
    """
    if options["chances"] is not None:
        low, high = options["chances"]
        return float(low), float(high)
    if law != "Chain-v0":
        return 0.3, 0.7
    mean = options["success"] ** (1 / options["num_subtasks"])
    return (3 * mean - 1) / 2, (1 + mean) / 2


def make_params(law: str, options: dict[str, Any], weights: dict[str, Any]) -> Params:
    """The numbers of an environment as arrays. There are no stalls and no reading overload."""
    rows, decisive = options["num_subtasks"], options["decisive"]
    even = (1 - decisive) / rows
    return Params(
        weights=weights,
        price_token=jnp.float32(options["price_token"]),
        price_second=jnp.float32(options["price_second"]),
        service=service(stall=0.0),
        charges=Charges(
            brief_tokens=jnp.asarray([0, 0, 0], jnp.int32),
            plan_tokens=jnp.int32(0),
            plan_steps=jnp.int32(0),
            child_steps=jnp.int32(0),
            hand_tokens=jnp.int32(0),
            send_tokens=jnp.int32(0),
            claim_tokens=jnp.asarray([0, 0], jnp.int32),
            despawn_tokens=jnp.int32(0),
            aggregate_tokens=jnp.int32(0),
            row_tokens=jnp.int32(0),
            aggregate_steps=jnp.int32(0),
        ),
        reading=Reading(per_message=jnp.float32(0), per_claim=jnp.zeros(2, jnp.float32), capacity=jnp.float32(1e6)),
        task=ControlParams(
            chances=jnp.asarray(chances(law, options), jnp.float32),
            weights=jnp.full(rows, even, jnp.float32).at[0].add(decisive),
            threshold=jnp.float32(options["threshold"]),
            call_tokens=jnp.int32(50),
        ),
    )


def _check(law: str, options: dict[str, Any]) -> None:
    for name, low, high in (
        ("agents", 1, 4_096),
        ("num_subtasks", 1, 8_192),
        ("decisions", 1, 4_096),
        ("observed_claims", 1, 16),
    ):
        whole(name, options[name], low, high)
    whole("irrelevant", options["irrelevant"], 0, 4_096)
    whole("max_ticks", options["max_ticks"], 1, 100_000, none=True)
    for name in ("max_turns", "max_tokens"):
        whole(name, options[name], 1, 2_000_000_000, none=True)
    for name, high in (("threshold", 1.0), ("decisive", 1.0), ("price_token", 1e6), ("price_second", 1e6)):
        number(name, options[name], 0.0, high)
    number("success", options["success"], 1e-9, 1.0)
    for name in ("lead_blocks", "strict_order"):
        truth(name, options[name])
    if list(options["frozen_roles"]) not in ([], ["worker"]):
        raise UsageError(f"frozen_roles: got {options['frozen_roles']!r}, allowed: a list of worker")
    given = options["chances"]
    if given is not None:
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise UsageError(f"chances: got {given!r}, allowed: None or two numbers from 0 to 1")
        for value in given:
            number("chances", value, 0.0, 1.0)
    elif law == "Chain-v0" and chances(law, options)[0] < 0:
        least = (1 / 3) ** options["num_subtasks"]
        raise UsageError(f"success: got {options['success']!r}, allowed with so few subtasks: from {least:.3g} to 1")
    for name, owner in (("threshold", "Majority-v0"), ("decisive", "Additive-v0"), ("success", "Chain-v0")):
        if law != owner and options[name] != DEFAULTS[name]:
            raise UsageError(f"{name}: got {options[name]!r} for {law}; only {owner} has it")


# Policies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chooser(Script):
    """A script whose workers choose 1 with probability `p` and say nothing in their return with 1 - `speak`."""

    p: float = field(default=0.5, compare=False)
    speak: float = field(default=1.0, compare=False)

    def init(self, env: Env) -> Any:
        """The script's parameters, p and speak."""
        lines, repeated = super().init(env)
        return lines, repeated, jnp.asarray([self.p, self.speak], jnp.float32)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: Any) -> tuple[jax.Array, Any, Any]:
        """The script's turns, with choices by each life's own noise."""
        lines, repeated, (p, speak) = params
        turns, carry, aux = super().act((lines, repeated), key, carry, ts)
        words = draw(key, ts.lineage, ts.turn, Purpose.POLICY)
        chosen = turns.at[:, 1].set((unit(words[:, 0]) < p).astype(jnp.int32))
        turns = jnp.where((turns[:, 0] == WORK)[:, None], chosen, turns)
        mute = (turns[:, 0] == RETURN) & (unit(words[:, 1]) >= speak)
        # There is one claim per subtask, so that nothing is ever disputed: such a return carries nothing.
        silent = jnp.asarray(self.env.harness.turn("return", claims="disputed", detail="full"))
        return jnp.where(mute[:, None], silent, turns), carry, aux


def team(env: Env, p: float = 0.5, speak: float = 1.0) -> Chooser:
    """All workers are spawned, the lead waits for all, reads and stops.

    Args:
      env: the environment, topology `swarm`.
      p: probability of choice 1, each time.
      speak: probability that a return carries what was found.
    """
    _needs(env, "team", "swarm")
    for name, value in (("p", p), ("speak", speak)):
        number(name, value, 0.0, 1.0)
    turn = env.harness.turn
    count = {"count": env.options["agents"]} if env.options["agents"] > 1 else {}
    lines = [turn("spawn", **count), turn("wait", **{"for": "all"}), turn("aggregate"), turn("stop")]
    return Chooser(env, lines_of(lines), p=p, speak=speak)


def alone(env: Env, p: float = 0.5, rows: int | None = None) -> Chooser:
    """The lead works on the first `rows` subtasks itself, reads and stops.

    Args:
      env: the environment, topology `single`.
      p: probability of choice 1, each time.
      rows: subtasks to work on; all if None.
    """
    _needs(env, "alone", "single")
    number("p", p, 0.0, 1.0)
    rows = env.spec.num_subtasks if rows is None else rows
    whole("rows", rows, 1, env.spec.num_subtasks)
    turn = env.harness.turn
    calls = env.options["decisions"] + env.options["irrelevant"]
    return Chooser(env, lines_of([*[turn("work")] * (rows * calls), turn("aggregate"), turn("stop")]), p=p)


def _needs(env: Env, policy: str, name: str) -> None:
    choose(f"policy {policy!r} with topology", env.options["topology"], (name,))


POLICIES = {"team": team, "alone": alone}
