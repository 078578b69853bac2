"""What the root is told after each of its decisions, part by part and with the names of lives: for words, not vectors.

Axis letters: C claim, R roster row, M subtask, U life.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.env import Env
from ddpomdp.harness import Legal
from ddpomdp.pytree import pytree
from ddpomdp.state import State
from ddpomdp.views import seeds
from ddpomdp.views.packed import Packed, pack
from ddpomdp.views.programs import Decisions, Step


@pytree
class Told:
    """What came of one decision of the root; feature names are in `env.spec`."""

    own: jax.Array  # f32[.]      `Observation.self` of the root
    claims: jax.Array  # f32[C,.]
    result: jax.Array  # f32[.]
    roster: jax.Array  # f32[R,.]
    roster_uid: jax.Array  # int32[R]    -1 empty
    board: jax.Array  # f32[M,.]
    legal: Legal  # the root's row
    roles: jax.Array  # int32[U]    role of every life born so far, -1 not born
    reward: jax.Array  # f32[]       summed over the decision's ticks
    terminated: jax.Array  # bool[]
    truncated: jax.Array  # bool[]
    ticks: jax.Array  # int32[]     the decision took
    stop_reason: jax.Array  # int32[]     StopReason
    info: dict[str, jax.Array]  # TimeStep.info


class Rootwise:
    """`reset(words)` and `step(luck, state, roles, turn)`: the decisions of `Decisions`, told part by part."""

    def __init__(self, env: Env):
        self.env, self.decisions = env, Decisions(env, "tokens")  # no menu: any number of calls will do
        self.reset, self.step = jax.jit(self._reset), jax.jit(self._step)

    def _reset(self, words: jax.Array) -> tuple[jax.Array, State, Packed]:
        """(luck, state, `Told`) of the episode whose key is uint32[2]."""
        key = seeds.key(words)
        luck = jax.random.fold_in(key, 1)
        state, _ = self.env.reset(key, luck)
        nobody = jnp.full(state.late.shape, -1, jnp.int32)
        return luck, state, pack(self._told(self.decisions.first(state), _admit(nobody, state)))

    def _step(self, luck: jax.Array, state: State, roles: jax.Array, turn: jax.Array) -> tuple[State, Packed]:
        """The root's turn int32[1+A] and every tick after it in which it has no choice."""

        def tick(carry: tuple[Step, jax.Array]) -> tuple[Step, jax.Array]:
            step = self.decisions.tick(luck, turn, carry[0])
            return step, _admit(carry[1], step.state)

        begun = (self.decisions.first(state), roles)
        step, roles = jax.lax.while_loop(lambda carry: self.decisions.goes_on(carry[0], False), tick, begun)
        return step.state, pack(self._told(step, roles))

    def _told(self, step: Step, roles: jax.Array) -> Told:
        state = step.state
        seen = self.env.observe(state)
        return Told(
            own=seen.self[0],
            claims=seen.claims[0],
            result=seen.last_result[0],
            roster=seen.roster[0],  # the root has slot 0 and parent place 0 for life
            roster_uid=seen.roster_uid[0],
            board=seen.board[0],
            legal=jax.tree.map(lambda x: x[0], state.legal),
            roles=roles,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            ticks=step.ticks,
            stop_reason=state.stop_reason,
            info=self.env.view(state).info,
        )


def _admit(roles: jax.Array, state: State) -> jax.Array:
    """Roles by uid int32[U] with those of the living: who is born is there after the tick of the birth."""
    lives = state.lives
    place = jnp.where(lives.alive, lives.uid, roles.shape[0])
    return roles.at[place].set(lives.role, mode="drop")


def life_name(uid: int, roles: Any, names: tuple[str, ...]) -> str:
    """A life's outside name: the n-th of its role in the episode, the root being `lead_0`.

    Args:
      uid: of a life that was born.
      roles: int32[U], role by uid.
      names: of the roles.
    """
    role = int(roles[uid])
    before = int(np.count_nonzero(np.asarray(roles[:uid]) == role))
    return f"{names[role]}_{before + (role != 0)}"
