"""The environment: `reset`, `step`, `observe`, legality and sampling around the engine.

Functions are pure and of one episode: batch with `jax.vmap`, or with `ddpomdp.wrappers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import engine as engine_
from ddpomdp import observe as observe_
from ddpomdp import rewards as rewards_
from ddpomdp.claims import TAINTED, UNTRUSTED, size
from ddpomdp.engine import Tick
from ddpomdp.enums import Group, LifeEnd, ResultCode, StopReason
from ddpomdp.handout import births_asked
from ddpomdp.harness import (
    DELEGATE,
    DESPAWN,
    GROUPS,
    MESSAGE,
    RETURN,
    SPAWN,
    Harness,
    Legal,
    kind_and_decision,
)
from ddpomdp.luck import Purpose, draw
from ddpomdp.params import Params
from ddpomdp.pytree import arrays, once, rows
from ddpomdp.rules import Config, Rules
from ddpomdp.state import State
from ddpomdp.task import Task
from ddpomdp.timestep import COST_PURPOSES, Event, Observation, TimeStep
from ddpomdp.topology import Topology


@dataclass(frozen=True)
class Spec:
    """Static sizes and names of an environment; axis letters as in the docs."""

    capacity: int  # N
    max_lives: Mapping[str, int]  # per role
    max_ticks: int
    max_turns: int | None
    num_subtasks: int  # M
    observed_claims: int  # C
    claim_log: int  # L
    max_parents: int  # P
    roster: int  # R
    num_args: int  # A
    vocabulary: int  # V
    menu_size: int
    roles: tuple[str, ...]
    tools: tuple[str, ...]
    self_features: tuple[str, ...]
    claim_features: tuple[str, ...]
    result_features: tuple[str, ...]
    roster_features: tuple[str, ...]
    board_features: tuple[str, ...]


class Env:
    """A task under a harness. Immutable; all methods but the constructor's are pure and jittable."""

    def __init__(
        self,
        *,
        id: str,
        version: str,
        task: Task,
        harness: Harness,
        topology: Topology,
        config: Config,
        offered: Mapping,
        params: Params,
        options: Mapping[str, Any],
    ):
        """Bind a task to its harness; use `ddpomdp.make`."""
        self.id, self.version = id, version
        self.harness, self.params, self.options = harness, params, dict(options)
        self.rules = Rules(
            task, harness, topology, config, {name: np.asarray(v, np.int32) for name, v in offered.items()}
        )
        self.spec = Spec(
            capacity=config.capacity,
            max_lives=dict(zip(task.roles, config.max_lives, strict=True)),
            max_ticks=config.max_ticks,
            max_turns=config.max_turns,
            num_subtasks=task.num_rows,
            observed_claims=config.observed_claims,
            claim_log=task.num_rows * task.per_row,
            max_parents=topology.max_parents,
            roster=config.roster,
            num_args=harness.num_args,
            vocabulary=harness.vocabulary,
            menu_size=harness.menu_size,
            roles=task.roles,
            tools=tuple(tool.name for tool in harness.tools),
            self_features=observe_.self_features(self.rules),
            claim_features=observe_.claim_features(self.rules),
            result_features=observe_.RESULT_FEATURES,
            roster_features=observe_.ROSTER_FEATURES,
            board_features=observe_.board_features(self.rules),
        )
        self._kinds, self._decisions = kind_and_decision(len(harness.tools))

    def __repr__(self) -> str:
        """Id and the options that were set."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"<{self.id} {options}>"

    def reset(
        self, key: jax.Array, luck: jax.Array | None = None, params: Params | None = None
    ) -> tuple[State, TimeStep]:
        """Start an episode.

        Args:
          key: draws the task.
          luck: draws everything else; default `jax.random.fold_in(key, 1)`. Pass the same key to every `step`.
          params: numbers to use instead of `env.params`. Pass the same ones to every `step`.
        """
        luck = jax.random.fold_in(key, 1) if luck is None else luck
        params = self.params if params is None else params
        state = engine_.reset(self.rules, key, luck, params)
        return state, self.view(state, params)

    def step(
        self, luck: jax.Array, state: State, turns: jax.Array, params: Params | None = None
    ) -> tuple[State, TimeStep]:
        """One tick.

        Args:
          luck: the episode's luck key, the same at every step (a fresh one works too, but is not replayable).
          state: as returned by `reset` or `step`.
          turns: int32[N, 1+A], one call per slot; empty slots are ignored, idle and blocked lives may only `wait`.
          params: numbers to use instead of `env.params`.

        Raises:
          ValueError: turns of a wrong shape or dtype.

        A step after `last` changes nothing.
        """
        params = self.params if params is None else params
        turns, state = self._checked(turns), arrays(state)
        if self.rules.config.frozen_roles:
            turns = self._frozen(state, turns, params)
        state_next, tick = engine_.step(self.rules, luck, state, turns, params)
        return state_next, self._timestep(state_next, turns, tick, params)

    def observe(self, state: State, params: Params | None = None) -> Observation:
        """What each agent sees: the function that fills `ts.observation`."""
        return observe_.observe(self.rules, arrays(state), self.params if params is None else params)

    def legal_tokens(self, legal: Legal, turns: jax.Array, position: int) -> jax.Array:
        """bool[N, V]: tokens legal at `position` given the positions before it in turns int32[N, 1+A]."""
        return self.harness.legal_tokens(legal, turns, position)

    def sample_turns(self, key: jax.Array, ts: TimeStep) -> jax.Array:
        """int32[N, 1+A] uniform over legal tokens, position by position; by lineage and own turn number."""
        pairs = (2 + self.spec.num_args) // 2
        words = [draw(key, ts.lineage, ts.turn, Purpose.POLICY + i) for i in range(pairs)]
        flat = [word[:, i] for word in words for i in range(2)]
        return self.harness.sample(flat[: 1 + self.spec.num_args], ts.legal)

    def worker_turns(self, ts: TimeStep) -> jax.Array:
        """int32[N, 1+A]: the task's stateless worker rule for every slot."""
        return self._rule(ts.legal, lambda: ts.observation)

    # Inside ------------------------------------------------------------------------------------------------------

    def _checked(self, turns: Any) -> jax.Array:
        shape = (self.spec.capacity, 1 + self.spec.num_args)
        if not hasattr(turns, "dtype"):
            turns = np.asarray(turns)
        if turns.shape != shape:
            raise ValueError(f"turns: shape {turns.shape}, must be {shape} (slots, 1 + arguments)")
        if not jnp.issubdtype(turns.dtype, jnp.integer):
            raise ValueError(f"turns: dtype {turns.dtype}, must be int32")
        wide = isinstance(turns, np.ndarray) and turns.dtype != np.int32 and turns.size
        if wide and (turns.max() > 2**31 - 1 or turns.min() < -(2**31)):
            raise ValueError(f"turns: values {turns.min()} to {turns.max()} do not fit int32")
        return jnp.asarray(turns).astype(jnp.int32)

    def worker_rule(self, state: State, params: Params | None = None) -> jax.Array:
        """int32[N, 1+A]: the task's stateless worker rule at a state."""
        return self._rule(state.legal, lambda: self.observe(state, params))

    def _rule(self, legal: Legal, see: Callable[[], Observation]) -> jax.Array:
        task = self.rules.further
        if not hasattr(task, "worker_sees"):
            return task.worker_turn(self.harness, legal)
        return task.worker_sees(self.harness, legal, see().self[:, -len(task.self_features) :])

    def _frozen(self, state: State, turns: jax.Array, params: Params) -> jax.Array:
        rule = self.worker_rule(state, params)
        frozen = jnp.zeros(turns.shape[0], bool)
        for role in self.rules.config.frozen_roles:
            frozen = frozen | (state.lives.role == role)
        return jnp.where((frozen & state.lives.alive)[:, None], rule, turns)

    def view(self, state: State, params: Params | None = None) -> TimeStep:
        """A state as a TimeStep in which nothing has just happened: no reward, no events. `reset` returns this."""
        params = self.params if params is None else params
        state = arrays(state)
        lives, n = state.lives, self.spec.capacity
        zero, no = jnp.zeros(n, jnp.float32), jnp.zeros(n, bool)
        ints = jnp.zeros(n, jnp.int32)
        channels = dict.fromkeys(params.weights, zero)
        event = Event(
            tick=ints,
            uid=ints - 1,
            slot=jnp.arange(n, dtype=jnp.int32),
            role=ints,
            parent_uid=ints - 1,
            kind=ints,
            decision=ints,
            tokens=jnp.zeros((n, 1 + self.spec.num_args), jnp.int32),
            valid=no,
            legal_count=ints,
            is_decision=no,
            target_uid=ints - 1,
            target_group=ints,
            claims_sent=ints,
            claims_received=ints,
            refused=ints,
            latency_ms=ints,
            clock_ms=ints,
            arrival_ms=ints,
            cost_tokens=jnp.zeros((n, 4), jnp.int32),
            result_code=ints,
            trusted=no,
            tainted=no,
            end_reason=ints,
            channels=channels,
        )
        return TimeStep(
            observation=observe_.observe(self.rules, state, params),
            legal=state.legal,
            reward=zero,
            channels=channels,
            terminated=no,
            truncated=no,
            alive=lives.alive & ~state.ended,
            uid=jnp.where(lives.alive & ~state.ended, lives.uid, -1),
            lineage=lives.lineage,
            turn=lives.turn,
            blocked=lives.blocked,
            last=state.ended,
            stop_reason=state.stop_reason,
            events=event,
            info=self._info(state),
        )

    def _timestep(self, state: State, turns: jax.Array, tick: Tick, params: Params) -> TimeStep:
        before = tick.before
        was, now = before.lives, state.lives
        here, acts = was.alive & ~before.ended, now.alive & ~state.ended
        shown = here | tick.born
        ends = state.ended & ~before.ended
        root = was.alive & (was.uid == 0)
        channels = once(partial(rewards_.channels, self.rules), state, tick, params)
        terminated = here & (tick.leaving | (ends & (state.stop_reason == StopReason.BUDGET)))
        terminated = terminated | (root & ends & (state.stop_reason == StopReason.STOPPED))
        truncated = here & ends & ~terminated
        return TimeStep(
            observation=once(partial(observe_.observe, self.rules), state, params),
            legal=state.legal,
            reward=rewards_.weigh(channels, params.weights),
            channels=channels,
            terminated=terminated,
            truncated=truncated,
            alive=acts,
            uid=jnp.where(here, was.uid, jnp.where(acts, now.uid, -1)),
            lineage=jnp.where(shown[:, None], now.lineage, jnp.uint32(0)),
            turn=jnp.where(shown, now.turn, 0),
            blocked=acts & now.blocked,
            last=state.ended,
            stop_reason=state.stop_reason,
            events=once(self._events, state, turns, tick, here, ends, channels),
            info=self._info(state),
        )

    def _events(self, state: State, turns: jax.Array, tick: Tick, here, ends, channels) -> Event:
        rules, call, bill, before = self.rules, tick.call, tick.bill, tick.before
        was = before.lives
        tool = jnp.where(here, call.tool, 0)
        holder = before.place_slot
        grants = tick.grants
        own = lambda x: jnp.where(grants.seat >= 0, rows(x, grants.seat), 0)  # noqa: E731
        parent = rows(holder, was.home)
        only = lambda x: jnp.where(here, x, 0)  # noqa: E731

        # Whom a call addressed, by uid: the child of the named roster row.
        to = rules.arg(call, MESSAGE, "to")
        row = jnp.where(tool == MESSAGE, to - len(GROUPS), -1)
        row = jnp.where(tool == DELEGATE, rules.arg(call, DELEGATE, "to") - 1, row)
        row = jnp.where(tool == DESPAWN, rules.arg(call, DESPAWN, "who"), row)
        row_of_place = jnp.where(holder >= 0, rows(row, holder), -1)
        named = was.alive & (was.home >= 0) & (rows(row_of_place, was.home) == was.rank)
        place = jnp.arange(holder.shape[0], dtype=jnp.int32)[:, None]
        named_uid = jnp.max(jnp.where(named[None, :] & (was.home[None, :] == place), was.uid[None, :], -1), axis=-1)
        target_uid = jnp.where(here & (row >= 0), jnp.where(was.place >= 0, rows(named_uid, was.place), -1), -1)
        group = jnp.where(here & (tool == MESSAGE) & (to < len(GROUPS)), to + 1, Group.NONE)

        refused = tick.refused_claim.astype(jnp.int32)
        born = jnp.where(state.ended, 0, own(grants.born))
        refused = refused + jnp.where(tool == SPAWN, births_asked(rules, call) - born, 0)
        refused = refused + jnp.where(tool == DELEGATE, own(grants.refused_rows), 0)
        undelivered = jnp.where(tick.posted.undeliverable > 0, 1, 0)  # at the receiver; messages to one child only
        to_child = jnp.where(was.home >= 0, undelivered * named, 0)
        lost = jnp.sum(jnp.where(was.home[None, :] == place, to_child[None, :], 0), axis=-1, dtype=jnp.int32)
        to_one = (tool == MESSAGE) & (row >= 0) & (was.place >= 0)
        refused = refused + jnp.where(to_one, rows(lost, was.place), 0)
        new_flags = tick.worked.claims.flags
        made = tick.place >= 0
        got_tainted = jnp.any((tick.received & state.masks.tainted) != 0, axis=-1)
        got_untrusted = jnp.any((tick.received & state.masks.untrusted) != 0, axis=-1)
        code = jnp.where(tick.refused_claim, ResultCode.REFUSED, state.lives.last_code)
        end_reason = jnp.where(here & ends, LifeEnd.EPISODE, LifeEnd.ALIVE)
        end_reason = jnp.where(here & tick.leaving, LifeEnd.DESPAWNED, end_reason).astype(jnp.int32)
        return Event(
            tick=jnp.broadcast_to(state.tick, here.shape),
            uid=jnp.where(here, was.uid, -1),
            slot=jnp.arange(here.shape[0], dtype=jnp.int32),
            role=only(was.role),
            parent_uid=jnp.where(here & (was.home >= 0), rows(was.uid, parent), -1),
            kind=only(jnp.asarray(self._kinds)[tool]),
            decision=jnp.where(here & call.is_decision, jnp.asarray(self._decisions)[tool], 0),
            tokens=jnp.where(here[:, None], turns, 0),
            valid=here & call.valid,
            legal_count=only(call.legal_count),
            is_decision=here & call.is_decision,
            target_uid=target_uid,
            target_group=group,
            claims_sent=only(tick.sent_count),
            claims_received=only(size(tick.received)),
            refused=only(refused),
            latency_ms=only(bill.latency_ms),
            clock_ms=only(was.clock_ms),
            arrival_ms=only(jnp.where((tool == RETURN) & ~tick.leaving, state.lives.arrival_ms, bill.end_ms)),
            cost_tokens=jnp.where(here[:, None], bill.tokens, 0),
            result_code=only(jnp.where(call.acts, code, 0)),
            trusted=here & ~((made & ((new_flags & UNTRUSTED) != 0)) | got_untrusted),
            tainted=here & ((made & ((new_flags & TAINTED) != 0)) | got_tainted),
            end_reason=end_reason,
            channels=channels,
        )

    def _info(self, state: State) -> dict[str, jax.Array]:
        totals, root = state.totals, state.place_slot[0]  # the root holds place 0
        names = [name for name in type(totals).__dataclass_fields__ if name not in ("tokens", "serial_s", "serial_ms")]
        return {
            "quality": state.quality,
            **self.rules.task.info(state.task, state.answer),
            "wall_s": state.lives.clock_ms[root].astype(jnp.float32) * jnp.float32(1e-3),
            "serial_s": rewards_.serial_s(state),
            "critical_steps": state.lives.steps[root].astype(jnp.float32) * jnp.float32(1e-3),
            "tokens": jnp.sum(totals.tokens, dtype=jnp.int32),
            **{f"tokens_{name}": totals.tokens[i] for i, name in enumerate(COST_PURPOSES)},
            "alive": jnp.where(state.ended, 0, jnp.sum(state.lives.alive, dtype=jnp.int32)),
            "mail_in_flight": jnp.sum(jnp.where(state.lives.alive, state.mail.count, 0), dtype=jnp.int32),
            **{name: getattr(totals, name) for name in names},
        }
