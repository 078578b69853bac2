"""Compiled steps behind the views, kept by environment and options: a second view of the same kind compiles nothing.

Axis letters: N slot, D feature, U life, A argument position.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ddpomdp.enums import LifeEnd
from ddpomdp.env import Env
from ddpomdp.params import RewardSpec
from ddpomdp.pytree import pytree
from ddpomdp.state import State
from ddpomdp.views import flat, seeds
from ddpomdp.views.menu import Menu, Tokens
from ddpomdp.views.packed import Packed, pack

T = TypeVar("T")
MOST = 16  # programs kept; the one used longest ago goes first
_kept: OrderedDict[Any, Any] = OrderedDict()


def program(make: Callable[..., T], env: Env, *settings: Any) -> T:
    """`make(env, *settings)`, or the one made before for an environment of the same id, version and options."""
    try:
        key = (make, env.id, env.version, env.harness.digest, _frozen(env.options), _frozen(settings))
    except TypeError:  # an option that cannot be compared
        return make(env, *settings)
    if key not in _kept:
        _kept[key] = make(env, *settings)
        while len(_kept) > MOST:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def _frozen(value: Any) -> Any:
    """A value as a key: 1, 1.0 and True are three; TypeError for what is not made of plain values."""
    if value is None or isinstance(value, bool | int | float | str):
        return (type(value).__name__, value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _frozen(item)) for name, item in value.items()))
    if isinstance(value, RewardSpec):
        return ("RewardSpec", _frozen(value.weights), _frozen(value.schedule))
    raise TypeError(f"{type(value).__name__} is no plain value")


@pytree
class Seen:
    """What the views of a whole team need of a tick; each row speaks of the one life in that slot."""

    observation: jax.Array  # f32[N,D]    of the dying and at the end too
    mask: Any  # int8[N,K], or a tuple of arrays
    reward: jax.Array  # f32[N]
    terminated: jax.Array  # bool[N]
    truncated: jax.Array  # bool[N]
    alive: jax.Array  # bool[N]     acts next
    uid: jax.Array  # int32[N]    -1 empty
    role: jax.Array  # int32[N]
    blocked: jax.Array  # bool[N]
    idle: jax.Array  # bool[N]
    valid: jax.Array  # bool[N]     the turn was legal
    late: jax.Array  # f32[U]      due in this tick to lives that had ended, without the team's pay
    team: jax.Array  # f32[]       the team's pay in this tick, weighted
    tick: jax.Array  # int32[]
    last: jax.Array  # bool[]
    stop_reason: jax.Array  # int32[]


class Ticks:
    """Tick by tick, everyone's turn given: `reset(words)`, `step(luck, state, turns)`, each compiled at first use."""

    def __init__(self, env: Env, actions: str):
        self.env, self.actions = env, (Menu if actions == "menu" else Tokens)(env.harness)
        self.features = flat.feature_names(env.spec)
        self.reset, self.step = jax.jit(self._reset), jax.jit(self._step)

    def _reset(self, words: jax.Array) -> tuple[jax.Array, State, Packed]:
        """(luck, state, `Seen`) of the episode whose key is uint32[2]."""
        key = seeds.key(words)
        luck = jax.random.fold_in(key, 1)
        state, ts = self.env.reset(key, luck)
        return luck, state, pack(self._seen(state, state, ts))

    def _step(self, luck: jax.Array, state: State, turns: jax.Array) -> tuple[State, Packed]:
        """One tick with turns int32[N, 1+A]."""
        after, ts = self.env.step(luck, state, turns)
        return after, pack(self._seen(state, after, ts))

    def _seen(self, before: State, state: State, ts: Any) -> Seen:
        weights, lives = self.env.params.weights, state.lives
        stays = lives.seen & (ts.events.end_reason != LifeEnd.DESPAWNED)
        return Seen(
            observation=flat.vectors(ts.observation, stays, lives.uid),
            mask=self.actions.masks(state.legal),
            reward=ts.reward,
            terminated=ts.terminated,
            truncated=ts.truncated,
            alive=lives.alive & ~state.ended,
            uid=ts.uid,
            role=lives.role,
            blocked=ts.blocked,
            idle=lives.alive & lives.returned & ~state.ended,
            valid=ts.events.valid,
            late=weights["individual"] * (state.late - before.late),
            team=weights["team"] * ts.team_return,
            tick=state.tick,
            last=state.ended,
            stop_reason=state.stop_reason,
        )


@pytree
class Decided:
    """What came of one step of the root."""

    observation: jax.Array  # f32[D]      at the end too
    mask: Any  # int8[K], or a tuple of arrays
    reward: jax.Array  # f32[]       the root's, summed over the step's ticks
    terminated: jax.Array  # bool[]
    truncated: jax.Array  # bool[]
    masked: jax.Array  # bool[]      the call was not legal and became `wait`
    ticks: jax.Array  # int32[]     this step took
    info: dict[str, jax.Array]  # TimeStep.info


@pytree
class Step:
    """A step of the root under way."""

    state: State
    reward: jax.Array  # f32[]
    terminated: jax.Array  # bool[]
    truncated: jax.Array  # bool[]
    masked: jax.Array  # bool[]
    ticks: jax.Array  # int32[]


class Decisions:
    """Decision by decision of the root, everyone else under the task's worker rule; pure functions, to be compiled.

    A step is the root's call and then every tick in which it could only wait (blocked by the gate, or waiting for its
    children), until more than one call is legal for it or the episode ends. `every_tick`: a step is one tick, and
    forced waits are steps whose mask leaves nothing else.
    """

    def __init__(self, env: Env, actions: str):
        self.env = env
        self.actions = (Menu if actions == "menu" else Tokens)(env.harness)
        self.features = flat.feature_names(env.spec)
        self.one_reset, self.one_step = jax.jit(self.begin), jax.jit(self.decide)

    def begin(self, words: jax.Array) -> tuple[jax.Array, State, Packed]:
        """(luck, state, `Decided`) of the episode whose key is uint32[2]."""
        key = seeds.key(words)
        luck = jax.random.fold_in(key, 1)
        state, _ = self.env.reset(key, luck)
        return luck, state, pack(self.told(self.first(state)))

    def decide(
        self, luck: jax.Array, state: State, turn: jax.Array, every_tick: jax.Array | bool
    ) -> tuple[State, Packed]:
        """The root's turn int32[1+A], and, unless `every_tick` bool[], all ticks in which it has no choice."""
        step = jax.lax.while_loop(
            lambda step: self.goes_on(step, every_tick), lambda step: self.tick(luck, turn, step), self.first(state)
        )
        return step.state, pack(self.told(step))

    def first(self, state: State) -> Step:
        """A step before its first tick."""
        no = jnp.bool_(False)
        return Step(
            state=state,
            reward=jnp.float32(0),
            terminated=no,
            truncated=no,
            masked=no,
            ticks=jnp.int32(0),
        )

    def goes_on(self, step: Step, every_tick: jax.Array | bool) -> jax.Array:
        """bool[]: the step takes another tick."""
        forced = self.env.harness.legal_count(step.state.legal)[0] <= 1
        return (step.ticks == 0) | (forced & ~step.state.ended & ~jnp.asarray(every_tick))

    def tick(self, luck: jax.Array, turn: jax.Array, step: Step) -> Step:
        """One tick: in the first the root says `turn`, in the others it waits."""
        env, before = self.env, step.state
        is_first = step.ticks == 0
        rule = env.worker_rule(before)
        turns = rule.at[0].set(jnp.where(is_first, turn, 0))  # the root has slot 0 for life
        state, ts = env.step(luck, before, turns)
        return Step(
            state=state,
            reward=step.reward + jnp.where(before.ended, 0.0, ts.reward[0]),
            terminated=ts.terminated[0],
            truncated=ts.truncated[0],
            masked=jnp.where(is_first, ~ts.events.valid[0] & ~before.ended, step.masked),
            ticks=step.ticks + 1,
        )

    def told(self, step: Step) -> Decided:
        """What the root is told after a step."""
        lives = step.state.lives
        seen = flat.vectors(self.env.observe(step.state), lives.seen, lives.uid)
        return Decided(
            observation=seen[0],
            mask=jax.tree.map(lambda mask: mask[0], self.actions.masks(step.state.legal)),
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            masked=step.masked,
            ticks=step.ticks,
            info=self.env.view(step.state).info,
        )
