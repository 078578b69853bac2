"""Scripted and random policies of the tests; what they do is a traced value, so that one compilation serves many.

Axis letters: N slot, A argument position.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.harness import AGGREGATE, DELEGATE, RETURN, SPAWN, STOP, WAIT, WAIT_FOR
from ddpomdp.pytree import pytree, replace


@pytree
class Plan:
    """What leads do. Axis D depth of the lead (0 the root, 1 its sub-leads)."""

    spawn: jax.Array  # int32[D, 1+A]  first hand-out
    again: jax.Array  # int32[1+A]     how idle children are handed more, while rows remain
    wait: jax.Array  # int32[D]       WaitFor
    more: jax.Array  # bool[]         hand out again after reading
    gives_up: jax.Array  # bool[]         at a deadline: read, then end
    random: jax.Array  # bool[]         everyone plays random legal turns instead
    masked: jax.Array  # int32[]        bits of tools that random turns never use


def plan(
    env: Env,
    wait: str = "all",
    count: int = 12,
    chunk: int | str = "even",
    *,
    sub: tuple[int, int | str] | None = None,
    sub_wait: str = "all",
    more: int | str | None = None,
    gives_up: bool = False,
    random: bool = False,
    never: tuple[int, ...] = (STOP,),
    brief: str = "detailed",
) -> Plan:
    """A plan by names; `sub`: (count, chunk) of each sub-lead's own spawn, whose leads the root then spawns."""
    turn = env.harness.turn
    first = turn("spawn", role="searcher" if sub is None else "lead", count=count, chunk=chunk, brief=brief)
    own = (count, chunk) if sub is None else sub
    second = turn("spawn", role="searcher", count=own[0], chunk=own[1], brief=brief)
    given = {} if len(env.options["delegate_chunks"]) == 1 else {"chunk": "even" if more is None else more}
    given |= {} if len(env.options["delegate_briefs"]) == 1 else {"brief": brief}
    return Plan(
        spawn=jnp.asarray([first.tolist(), second.tolist()], jnp.int32),
        again=jnp.asarray(turn("delegate", to="all_idle", rows="next", **given), jnp.int32),
        wait=jnp.asarray([WAIT_FOR.index(wait), WAIT_FOR.index(sub_wait)], jnp.int32),
        more=jnp.bool_(more is not None),
        gives_up=jnp.bool_(gives_up),
        random=jnp.bool_(random),
        masked=jnp.int32(sum(1 << tool for tool in never)),
    )


@dataclass(frozen=True)
class Leads:
    """Leads follow a `Plan`, their searchers the worker rule: a function of what each sees, without memory.

    A lead hands out, waits, reads, hands out again while rows remain, reads until nothing is out; then the root stops
    and a sub-lead returns.
    """

    env: Env

    def init(self, env: Env) -> Plan:
        """Wait for all."""
        return plan(env)

    def carry(self, env: Env) -> tuple:
        """No memory."""
        return ()

    def act(self, params: Plan, key: jax.Array, carry: Any, ts) -> tuple[jax.Array, Any, Any]:
        """The plan's turn for leads, the worker rule for the rest, or random turns for all."""
        env, legal, n = self.env, ts.legal, ts.uid.shape[0]
        names = env.spec.self_features
        seen = lambda name: ts.observation.self[:, names.index(name)]  # noqa: E731
        may = lambda tool: ((legal.tools >> tool) & 1) == 1  # noqa: E731
        turn = lambda name, **args: jnp.asarray(env.harness.turn(name, **args))  # noqa: E731
        depth = jnp.clip(seen("depth").astype(jnp.int32), 0, 1)
        out, unread = legal.bounds[:, 0] > 1, seen("children_unread") > 0
        has_read = ts.observation.last_result[:, 0] == AGGREGATE
        quits = params.gives_up & (seen("lifted") > 0)
        tool = jnp.full(n, STOP, jnp.int32)
        tool = jnp.where(seen("depth") > 0, RETURN, tool)
        tool = jnp.where(~has_read, AGGREGATE, tool)
        tool = jnp.where(out & ~quits, WAIT, tool)
        tool = jnp.where(params.more & may(DELEGATE) & (seen("rows_left") > 0), DELEGATE, tool)
        tool = jnp.where(unread, AGGREGATE, tool)
        tool = jnp.where(seen("has_handed_out") == 0, SPAWN, tool)
        wait = jnp.zeros((n, 1 + env.spec.num_args), jnp.int32).at[:, 1].set(params.wait[depth])
        turns = jnp.where((tool == WAIT)[:, None], wait, turn("stop")[None])
        for index, spoken in (
            (RETURN, turn("return", claims="all", detail="full")[None]),
            (AGGREGATE, turn("aggregate", rule="majority")[None]),
            (DELEGATE, params.again[None]),
            (SPAWN, params.spawn[depth]),
        ):
            turns = jnp.where((tool == index)[:, None], spoken, turns)
        leads = (seen("is_lead") > 0) & ts.alive
        turns = jnp.where(leads[:, None], turns, env.worker_turns(ts))
        # Blocked and idle lives may only wait.
        turns = jnp.where((legal.tools == 1)[:, None], 0, turns)
        fewer = replace(legal, tools=jnp.where(legal.tools == 1, 1, legal.tools & ~params.masked))
        chance = env.sample_turns(key, replace(ts, legal=fewer))
        return jnp.where(params.random, chance, turns), carry, {}
