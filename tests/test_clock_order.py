"""Clock order: ticks are a schedule, clocks are time (model section 5)."""

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import clock_order
import jax
import jax.numpy as jnp
import numpy as np
import scripts
from clock_order import Record, check

import ddpomdp
from ddpomdp.pytree import replace
from ddpomdp.rollouts import rollout

OPTIONS = {
    "capacity": 16,
    "num_subtasks": 48,
    "roster": 16,
    "claims_per_row": 8,
    "counts": (1, 2, 3, 4, 6, 8, 12),
    "chunks": (1, 2, 4, "even"),
    "delegate_chunks": (1, 2, "even"),
    "max_ticks": 1_000,
}
# Compilation is most of the time of these tests; integers do not depend on how well the code is optimised.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BATCH = 64


@functools.cache
def make(topology: str, strict: bool = False, model: str = "strong"):
    return ddpomdp.make("Search-v0", topology=topology, strict_order=strict, model=model, **OPTIONS)


def recorder(env, num_ticks: int):
    """keys [B], plan, params -> what a checker needs of B episodes, compiled once."""
    names, rows = env.spec.self_features, env.spec.roster_features

    def one(key, plan, params):
        r = rollout(env, scripts.Leads(env), plan, key, num_ticks, env_params=params)
        events = {n: getattr(r.next_ts.events, n) for n in clock_order.EVENT_FIELDS if n != "argument"}
        events["argument"] = r.next_ts.events.tokens[:, :, 1]
        seen = r.ts.observation
        shown = {n: seen.self[..., names.index(n)] for n in clock_order.SHOWN_FIELDS if n != "blocked"}
        shown |= {n: jnp.round(x * 10).astype(jnp.int32) for n, x in shown.items() if n.startswith("children")}
        shown["blocked"] = r.ts.blocked
        roster = jnp.stack([seen.roster[..., rows.index(n)] for n in clock_order.ROSTER_FIELDS], axis=-1)
        totals = {n: r.ts.info[n][-1] for n in clock_order.TOTALS}
        return {
            "events": events,
            "shown": shown,
            "parent_slot": seen.parent_slot,
            "roster": roster,
            "roster_uid": seen.roster_uid,
            "totals": totals,
        }

    run = jax.vmap(one, in_axes=(0, None, None))
    keys = jax.random.split(jax.random.key(0), BATCH)
    return jax.jit(run).lower(keys, scripts.plan(env), env.params).compile(compiler_options=QUICK)


def records(batch: Any, params) -> list[Record]:
    batch = jax.tree.map(np.asarray, batch)
    episodes = [jax.tree.map(lambda x, b=b: x[b], batch) for b in range(BATCH)]
    service = params.service
    limits = {"wait_limit_ms": int(service.wait_limit_ms), "idle_ms": int(service.idle_ms)}
    return [Record(**(e | {"totals": {n: int(x) for n, x in e["totals"].items()}} | limits)) for e in episodes]
