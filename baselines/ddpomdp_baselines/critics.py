"""Critics: what a decision's life will be paid from there on, guessed from what is seen now, or from the trace so far.

    plain    the speaker's own view of this moment: features, newest claims, last result; a parent's board too
    prefix   that, and a recurrent memory of all events of the team up to now (`prefix`), folded or not

V(G_<=t) of the survey (arXiv 2605.02801, Eq. 3): a critic may know more than the agents, since it only serves learning.

Axis letters: T tick, B episode, N slot, E = T B N entry, C decision of a chunk, L row, H memory.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ddpomdp.env import Env
from ddpomdp.pytree import replace
from ddpomdp_baselines import prefix
from ddpomdp_baselines.advantages import gae, returns_to_go
from ddpomdp_baselines.experience import Experience, entries, sum_over_decisions
from ddpomdp_baselines.network import View, flat_size, flat_view, squash
from ddpomdp_baselines.prefix import Prefix

READS = ("plain", "prefix")
MAX_NORM = 10.0  # gradients are cut to it


class Net(nnx.Module):
    """Weights of a critic. Sizes of team and task do not enter them."""

    def __init__(self, env: Env, width: int, reads: str, rngs: nnx.Rngs):
        """Fresh weights; the last layer starts small, so that a fresh critic says about 0."""
        spec = env.spec
        self.num_tools = len(spec.tools)
        small = nnx.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")
        self.read = nnx.Linear(flat_size(env), width, rngs=rngs)
        self.row = nnx.Linear(len(spec.board_features), width, rngs=rngs)
        self.rows = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        memory = width if reads == "prefix" else 0
        self.think = nnx.Linear(width + memory, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs, kernel_init=small)
        if memory:
            self.event = nnx.Linear(len(prefix.features(env)), width, rngs=rngs)
            self.memory = nnx.GRUCell(width, width, rngs=rngs)

    def remember(self, rows: jax.Array) -> jax.Array:
        """f32[B,L+1,H]: the memory before each row of f32[B,L,F], and after the last."""

        def read(memory: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.memory(memory, row)[0], memory

        inputs = jnp.moveaxis(nnx.relu(self.event(rows)), 1, 0)
        last, before = jax.lax.scan(read, jnp.zeros(inputs.shape[1:]), inputs)
        return jnp.moveaxis(jnp.concatenate([before, last[None]]), 0, 1)

    def __call__(self, seen: View, memory: jax.Array) -> jax.Array:
        """f32[C]: the value at decisions that have seen this and remember f32[C,H]."""
        hidden = nnx.relu(self.read(flat_view(seen, self.num_tools)))
        if seen.at.shape[0]:
            board = jnp.mean(nnx.relu(self.row(squash(seen.board))), axis=1)
            hidden = hidden.at[seen.at].add(self.rows(board), mode="drop")
        return self.out(nnx.relu(self.think(jnp.concatenate([hidden, memory], axis=-1))))[:, 0]


@dataclass(frozen=True)
class Critic:
    """A critic: its weights are given, as a policy's are.

    Attributes:
      env: names the features.
      width: units per layer, and of the memory.
      reads: one of `READS`.
      fold: "prefix" reads the lead's context, in which finished branches are one row each.
      rows: "prefix" reads so many rows of a trace, the first; with `fold` fewer do.
      learning_rate: of Adam.
    """

    env: Env
    width: int = 32
    reads: str = "plain"
    fold: bool = False
    rows: int = 1024
    learning_rate: float = 1e-3

    def _net(self, seed: jax.Array | int) -> Net:
        return Net(self.env, self.width, self.reads, nnx.Rngs(params=seed))

    @property
    def _graph(self) -> Any:
        return nnx.split(nnx.eval_shape(lambda: self._net(0)))[0]

    def init(self, seed: int = 0) -> dict[str, Any]:
        """Fresh weights as nested dicts of arrays."""
        return nnx.to_pure_dict(nnx.state(self._net(seed)))

    @property
    def rule(self) -> optax.GradientTransformation:
        """Adam on gradients cut to a norm."""
        return optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(self.learning_rate))

    def remember(self, params: Any, trace: Prefix | None, episodes: int) -> jax.Array:
        """f32[B,L+1,H]: the memory before each row; of a plain critic [B,1,0]."""
        if self.reads == "plain" or trace is None:
            return jnp.zeros((episodes, 1, 0))
        return nnx.merge(self._graph, params).remember(trace.rows)

    def judge(self, params: Any, seen: View, memory: jax.Array) -> jax.Array:
        """f32[C]: values of decisions."""
        return nnx.merge(self._graph, params)(seen, memory)

    def values(self, params: Any, data: Experience, learns: jax.Array, chunk: int) -> jax.Array:
        """f32[T,B,N]: values at the decisions learned from, 0 elsewhere."""
        size, memory = learns.size, self.remember(params, data.prefix, learns.shape[1])
        at = _moments(data)

        def part(seen: View, entry: jax.Array, real: jax.Array) -> jax.Array:
            value = self.judge(params, seen, memory[at(entry)])
            return jnp.zeros(size).at[jnp.where(real, entry, size)].add(value, mode="drop")

        return sum_over_decisions(part, data, learns, chunk).reshape(learns.shape)

    def gradient(
        self, params: Any, data: Experience, learns: jax.Array, target: jax.Array, chunk: int
    ) -> tuple[Any, jax.Array]:
        """(gradient, loss f32[]) of the mean of (value - target)^2 / 2 over the decisions learned from.

        A chunk of decisions gives its part of the gradient, and what it wants of the memory; the trace is gone through
        backwards once.
        """
        memory, back = jax.vjp(lambda p: self.remember(p, data.prefix, learns.shape[1]), params)
        at, wanted = _moments(data), entries(target)

        def loss(params: Any, memory: jax.Array, seen: View, entry: jax.Array, real: jax.Array) -> jax.Array:
            error = self.judge(params, seen, memory[at(entry)]) - wanted[entry]
            return 0.5 * jnp.sum(jnp.where(real, jnp.square(error), 0.0))

        def part(seen: View, entry: jax.Array, real: jax.Array) -> Any:
            return jax.value_and_grad(loss, argnums=(0, 1))(params, memory, seen, entry, real)

        total, (own, remembered) = sum_over_decisions(part, data, learns, chunk)
        count = jnp.maximum(jnp.sum(data.decides & learns), 1)
        gradient = jax.tree.map(lambda a, b: (a + b) / count, own, back(remembered)[0])
        return gradient, total / count

    def step(
        self, params: Any, optimiser: Any, data: Experience, learns: jax.Array, target: jax.Array, chunk: int
    ) -> tuple[Any, Any, jax.Array]:
        """(weights, state of `rule`, loss before): one step towards targets f32[T,B,N]."""
        gradient, loss = self.gradient(params, data, learns, target, chunk)
        change, optimiser = self.rule.update(gradient, optimiser, params)
        return optax.apply_updates(params, change), optimiser, loss


def judged(data: Experience, value: jax.Array, learns: jax.Array, decay: float) -> tuple[Experience, jax.Array]:
    """(the experience with each decision's GAE for its pay, targets f32[T,B,N]).

    Steps are the decisions of a life; what falls due between two of them, or after the last, is the former's.
    """
    bootstrap = jnp.zeros(value.shape[1:])  # a life's last decision ends
    mask = data.decides & learns
    advantage, target = gae(data.returns, value, bootstrap, data.last, decay=decay, mask=mask)
    return replace(data, returns=advantage), target


def to_go(data: Experience, learns: jax.Array) -> jax.Array:
    """f32[T,B,N]: what each life is paid from each of its decisions on."""
    return returns_to_go(data.returns, data.last, mask=data.decides & learns)


def explained(value: jax.Array, paid: jax.Array, mask: jax.Array) -> jax.Array:
    """f32[]: 1 - Var(paid - value) / Var(paid) over the marked decisions; 0 where nothing varies."""
    weight = mask / jnp.maximum(jnp.sum(mask), 1)

    def variance(x: jax.Array) -> jax.Array:
        return jnp.sum(weight * jnp.square(x - jnp.sum(weight * x)))

    total = variance(paid)
    return jnp.where(total > 1e-12, 1 - variance(paid - value) / jnp.maximum(total, 1e-12), 0.0)


def _moments(data: Experience) -> Any:
    """Entries int32[C] to (episode, rows seen before) of each: where its memory stands."""
    steps, episodes, slots = data.decides.shape
    zero = jnp.zeros((steps, episodes), jnp.int32)
    before = zero if data.prefix is None else data.prefix.before(steps)

    def at(entry: jax.Array) -> tuple[jax.Array, jax.Array]:
        tick, episode = entry // (episodes * slots), entry // slots % episodes
        return episode, before[tick, episode]

    return at
