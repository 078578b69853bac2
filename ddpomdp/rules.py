"""The static side of an environment: settings that need a new compilation when changed, and the grammar's numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import byvalue, claims
from ddpomdp.claims import Log
from ddpomdp.harness import AGGREGATE, Harness
from ddpomdp.pytree import replace, rows
from ddpomdp.task import Task
from ddpomdp.topology import Topology
from ddpomdp.turns import Call


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and rules that need a new compilation when changed."""

    capacity: int  # N
    max_lives: tuple[int, ...]  # per role
    max_ticks: int
    max_turns: int | None  # turns other than wait, all agents together
    max_tokens: int | None
    roster: int  # R
    observed_claims: int  # C
    frozen_roles: tuple[int, ...]
    lead_blocks: bool
    strict_order: bool  # only the smallest clock acts: the slow reference schedule


@dataclass(frozen=True, eq=False)
class Rules:
    """What every move of the engine is given: task, harness, topology, settings.

    `offered` maps (tool, argument) to the numbers its values stand for (rows, children, levels, where not all are
    offered the task's rules; -1: even split).
    """

    task: Task
    harness: Harness
    topology: Topology
    config: Config
    offered: Mapping[tuple[int, str], np.ndarray]

    @property
    def further(self) -> Any:
        """The task, for attributes and methods that only some tasks have."""
        return self.task

    @property
    def passes(self) -> int:
        """How often the task's rows stand in the queue at first."""
        return getattr(self.task, "passes", 1)

    @property
    def by_value(self) -> bool:
        """Whether the log is of `ddpomdp.byvalue`."""
        return getattr(self.task, "by_value", False)

    def empty_log(self) -> Log:
        """The log before the first turn."""
        rows, places = self.task.num_rows, self.task.per_row
        log = byvalue.empty_log(rows, places, self.notes) if self.by_value else claims.empty_log(rows, places)
        return replace(log, said=self.said(log))

    def masks(self, log: Log) -> Any:
        """The masks of a log."""
        return byvalue.masks(log, self.notes) if self.by_value else claims.masks(log)

    def said(self, log: Log) -> Any:
        """What the task keeps of the entries of a log."""
        return self.further.said(log) if hasattr(self.task, "said") else None

    def kept(self, log: Log) -> tuple[Any, Any]:
        """What is brought up to date when entries come: masks, and what the task keeps."""
        return self.masks(log), self.said(log)

    @property
    def notes(self) -> int:
        """Levels of a task's notes."""
        return getattr(self.task, "notes", 0)

    @property
    def hands_over(self) -> bool:
        """Whether the task says itself which claims go with work, and which rows a selector picks."""
        return hasattr(self.task, "hand_over")

    def arg(self, call: Call, tool: int, name: str, default: int = 0) -> jax.Array:
        """int32[N]: token of an argument of `tool`; `default` where the grammar has left it out."""
        for position, argument in enumerate(self.harness.tools[tool].arguments):
            if argument.name == name:
                return call.args[position]
        return jnp.full_like(call.tool, default)

    def rule(self, call: Call) -> jax.Array:
        """int32[N]: which of the task's rules each call aggregates by."""
        said = self.arg(call, AGGREGATE, "rule")
        values = self.offered.get((AGGREGATE, "rule"))
        return said if values is None else jnp.asarray(values)[said]

    def number(self, call: Call, holder: jax.Array, tool: int, name: str) -> jax.Array:
        """int32[P]: the number an argument of each parent's call stands for (rows, children, level; -1: even split)."""
        return jnp.asarray(self.offered[tool, name])[rows(self.arg(call, tool, name), holder)]


def per_parent(flags: jax.Array, home: jax.Array, holder: jax.Array) -> jax.Array:
    """int32[P]: flagged children bool[N] of each parent place."""
    place = jnp.arange(holder.shape[0], dtype=jnp.int32)
    return jnp.sum(flags[None, :] & (home[None, :] == place[:, None]), axis=-1, dtype=jnp.int32)
