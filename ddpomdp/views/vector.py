"""Gymnasium's view of many episodes at once: one compiled call and one transfer per step.

The same episodes as `num_envs` views of one (`ddpomdp.views.gymnasium`), seeded with `seed + i`: same observations,
rewards, flags and infos, whatever the mode of reset, which `metadata["autoreset_mode"]` names:

- `NEXT_STEP` (default): the step after an episode's end resets it, ignores its action, and pays 0;
- `SAME_STEP`: the step that ends an episode returns the next one's first observation, with the old one's last under
  `final_obs` and `final_info`;
- `DISABLED`: nothing is reset but by `reset(options={"reset_mask": bool array})`; stepping an episode that has ended
  is an error.

Infos are arrays over environments, each with its mask `_name`, as Gymnasium's own vector environments give them.
"""

from typing import Any

import gymnasium.vector
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ddpomdp.options import UsageError
from ddpomdp.pytree import pytree
from ddpomdp.state import State
from ddpomdp.views import seeds
from ddpomdp.views.flat import Outlook
from ddpomdp.views.gymnasium import WHOSE, decisions
from ddpomdp.views.packed import Packed, fetch, pack
from ddpomdp.views.programs import Decided, Decisions, Step, program

MOST_ENVS = 2**20
AT_ONCE = 64  # episodes that a CPU steps together; on accelerators a batch costs about as much as one


@pytree
class Episodes:
    """The episodes of a batch. Axis B."""

    state: State
    luck: jax.Array  # keys [B]


class Batch:
    """`reset(words, mask, old)` and `step(episodes, turns, every_tick, pending, words,
    same_step)`, each compiled at first use.

    `words` uint32[B,2] are the keys of each environment's next episode, used where it is reset.
    """

    def __init__(self, env: Any, actions: str):
        self.one = program(Decisions, env, actions)
        self.start, self.restart, self.step = jax.jit(self._start), jax.jit(self._restart), jax.jit(self._step)

    def _start(self, words: jax.Array) -> tuple[Episodes, Packed]:
        luck, state, told = jax.vmap(self.one.begin)(words)
        return Episodes(state=state, luck=luck), told

    def _restart(self, words: jax.Array, mask: jax.Array, old: Episodes, told: Packed) -> tuple[Episodes, Packed]:
        """New episodes where `mask` bool[B] says so."""
        return _where(mask, self._start(words), (old, told))

    def _step(
        self,
        old: Episodes,
        turns: jax.Array,
        every_tick: jax.Array,
        pending: jax.Array,
        words: jax.Array,
        same_step: jax.Array,
    ) -> tuple[Episodes, Packed, Packed]:
        """(episodes, `Decided`, `Decided` before any reset); `pending` bool[B] are reset instead of stepped."""
        step = self._decide(old, turns, every_tick)
        final = jax.vmap(self.one.told)(step)
        ends = final.terminated | final.truncated
        resets = pending | (ends & same_step)
        packed = jax.vmap(pack)(final)
        kept = (Episodes(state=step.state, luck=old.luck), packed)
        # Resets of a whole batch are dear, and small batches are seldom at an end.
        new, told = jax.lax.cond(jnp.any(resets), lambda: _where(resets, self._start(words), kept), lambda: kept)
        return new, told, packed

    def _decide(self, old: Episodes, turns: jax.Array, every_tick: jax.Array) -> Step:
        """A step of every episode, `AT_ONCE` of those under way at a time, so that few wait for the slowest."""
        num_envs = turns.shape[0]
        at_once = min(num_envs, AT_ONCE) if jax.default_backend() == "cpu" else num_envs
        goes_on = jax.vmap(self.one.goes_on, in_axes=(0, None))

        def ticks(carry: tuple[Step, jax.Array]) -> tuple[Step, jax.Array]:
            step, under_way = carry
            some = jnp.nonzero(under_way, size=at_once, fill_value=num_envs)[0]
            take = lambda x: x[jnp.minimum(some, num_envs - 1)]  # noqa: E731
            moved = jax.vmap(self.one.tick)(take(old.luck), take(turns), jax.tree.map(take, step))
            step = jax.tree.map(lambda x, new: x.at[some].set(new, mode="drop"), step, moved)
            return step, goes_on(step, every_tick)

        first = jax.vmap(self.one.first)(old.state)
        return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), ticks, (first, goes_on(first, every_tick)))[0]


def _where(mask: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)), a, b), new, old)


class VectorOrchestrator(gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """The root's view of `num_envs` episodes, as made by `gymnasium.make_vec("ddpomdp:ddpomdp/Search-v0", ...)`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        actions: str = "menu",
        mask_in: str = "observation",
        obs_key: str = "observation",
        every_tick: bool = False,
        **options: Any,
    ):
        """Bind the view to an environment; arguments and errors as of `Orchestrator`.

        Args:
          num_envs: episodes in a batch.
          autoreset_mode: an `AutoresetMode`, or its name or value.
        """
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or not 1 <= num_envs <= MOST_ENVS:
            raise UsageError(f"num_envs: got {num_envs!r}, allowed: whole numbers 1 to {MOST_ENVS}")
        self.mode = _mode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.mode}
        self._outlook = Outlook(mask_in, obs_key)
        one = decisions(env_id, actions, every_tick, options)
        self._batch, self._actions = program(Batch, one.env, actions), one.actions
        self._every_tick = every_tick
        self.env, self.feature_names, self.num_envs = one.env, one.features, num_envs
        self.single_action_space = one.actions.space()
        self.single_observation_space = self._outlook.space(len(one.features), one.actions.mask_space())
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._seeds = np.zeros(num_envs, np.int64)  # of the present episodes
        self._next = np.zeros(num_envs, np.int64)  # of the next ones, unless a seed is given
        self._words = np.zeros((num_envs, 2), np.uint32)  # keys of the next ones
        self._ended, self._masked = np.zeros(num_envs, bool), np.zeros(num_envs, np.int64)
        self._episodes: Episodes | None = None
        self._packed: Any = None
        self._told: Any = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes: (observations, infos).

        Args:
          seed: a number (environment i gets seed + i), a list of one per environment, or None.
          options: `reset_mask` bool[num_envs]: which environments to reset, at least one; others stay as they are.

        Raises:
          ValueError: a bad seed or reset_mask, by name.
        """
        if self.closed:
            raise ClosedEnvironmentError("reset: the environment is closed")
        given, mask = self._given_seeds(seed), self._reset_mask(options)
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        for i in np.flatnonzero(mask).tolist():
            if given[i] is not None or self._generators[i] is None:
                self._generators[i] = seeds.generator(given[i])
                self._draw(i, given[i])
        if mask.all():
            self._episodes, self._packed = self._batch.start(self._words)
        else:
            self._episodes, self._packed = self._batch.restart(self._words, mask, self._present(), self._packed)
        self._told = fetch(self._packed)
        self._begun(mask)
        return self._observations(self._told), self._infos(self._told, mask)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One decision in every episode: (observations, rewards, terminations, truncations, infos).

        Raises:
          ValueError: actions of a wrong shape or dtype, or one out of range, by environment. Nothing has changed then.
          ResetNeeded: before the first reset; in DISABLED mode, where an episode has ended.
        """
        episodes = self._present()
        turns = self._actions.batch(actions, self.num_envs, WHOSE)
        if self.mode == AutoresetMode.DISABLED and self._ended.any():
            raise ResetNeeded(f"the episodes of environments {np.flatnonzero(self._ended).tolist()[:10]} have ended")
        pending, same_step = self._ended & (self.mode == AutoresetMode.NEXT_STEP), self.mode == AutoresetMode.SAME_STEP
        step = self._batch.step
        self._episodes, self._packed, final = step(episodes, turns, self._every_tick, pending, self._words, same_step)
        told = self._told = fetch(self._packed)
        last = fetch(final) if same_step else told
        ended = (last.terminated | last.truncated) & ~pending
        self._masked += last.masked & ~pending
        infos: dict[str, Any] = {}
        if same_step and ended.any():
            infos = self._finals(last, ended)
        self._begun(ended if same_step else pending)
        self._ended = ended & (not same_step)
        infos |= self._infos(told, np.ones(self.num_envs, bool))
        rewards = np.where(pending, 0.0, last.reward).astype(np.float64)
        flags = np.array(last.terminated & ended), np.array(last.truncated & ended)
        return self._observations(told), rewards, *flags, infos

    def action_masks(self) -> Any:
        """Masks of the next actions: int8[B, K], or a tuple of arrays per position."""
        self._present()
        return jax.tree.map(np.array, self._told.mask)

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the episodes."""
        self._episodes = self._packed = self._told = None

    def _present(self) -> Episodes:
        if self.closed:
            raise ClosedEnvironmentError("the environment is closed")
        if self._episodes is None:
            raise ResetNeeded("call reset() before anything else")
        return self._episodes

    def _draw(self, i: int, seed: int | None = None) -> None:
        """Make the next episode of environment i that of `seed`, or of a seed from its generator."""
        generator = self._generators[i]
        assert generator is not None
        self._next[i] = seeds.drawn(generator) if seed is None else seed
        self._words[i] = seeds.words(int(self._next[i]))

    def _begun(self, mask: np.ndarray) -> None:
        """The next episodes of the environments in bool[B] are now the present ones."""
        self._seeds = np.where(mask, self._next, self._seeds)
        self._ended, self._masked = self._ended & ~mask, np.where(mask, 0, self._masked)
        self._words = self._words.copy()  # a device may still read the old ones
        for i in np.flatnonzero(mask).tolist():
            self._draw(i)

    def _observations(self, told: Decided) -> Any:
        return self._outlook.observation(np.array(told.observation), jax.tree.map(np.array, told.mask))

    def _infos(self, told: Decided, mask: np.ndarray) -> dict[str, Any]:
        """Arrays over environments, 0 where `mask` bool[B] is False, each with a copy of the mask."""
        values = {
            "seed": self._seeds,
            "ticks": _wide(told.ticks),
            "masked_calls": self._masked,
            **{name: _wide(value) for name, value in told.info.items()},
        }
        infos: dict[str, Any] = {}
        for name, value in values.items():
            infos[name], infos[f"_{name}"] = np.where(mask, value, np.zeros_like(value)), mask.copy()
        if self._outlook.mask_in == "info":
            infos["action_mask"], infos["_action_mask"] = jax.tree.map(np.array, told.mask), mask.copy()
        return infos

    def _finals(self, final: Decided, ended: np.ndarray) -> dict[str, Any]:
        """The last observations and infos of the environments in bool[B]."""
        last = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended).tolist():
            mask = self._actions.of_slot(final.mask, i)
            last[i] = self._outlook.observation(np.array(final.observation[i]), mask)
        infos = {"final_obs": last, "final_info": self._infos(final, ended)}
        return {**infos, "_final_obs": ended.copy(), "_final_info": ended.copy()}

    def _given_seeds(self, seed: Any) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, list | tuple | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed: got {len(seed)} of them, must be {self.num_envs}, one per environment")
            return [seeds.checked(one, f"seed of environment {i}") for i, one in enumerate(seed)]
        first = seeds.checked(seed)
        assert first is not None
        seeds.checked(first + self.num_envs - 1, "seed of the last environment")
        return [first + i for i in range(self.num_envs)]

    def _reset_mask(self, options: Any) -> np.ndarray:
        everyone = np.ones(self.num_envs, bool)
        if options is None or "reset_mask" not in options:
            return everyone
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            shape = f"{mask.dtype}{list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise ValueError(f"reset_mask: got {shape}, must be a numpy array bool[{self.num_envs}]")
        if not mask.any():
            raise ValueError("reset_mask: all False, at least one environment must be reset")
        if self._episodes is None and not mask.all():
            raise ResetNeeded("the first reset is of all environments")
        return mask.copy()


def _wide(value: Any) -> np.ndarray:
    """Numbers in 64 bits, as Gymnasium stacks those of single environments."""
    array = np.asarray(value)
    return array.astype({"f": np.float64, "i": np.int64, "u": np.int64}.get(array.dtype.kind, array.dtype))


def _mode(mode: Any) -> AutoresetMode:
    for known in AutoresetMode:
        if mode is known or mode in (known.name, known.value):
            return known
    names = ", ".join(known.name for known in AutoresetMode)
    raise UsageError(f"autoreset_mode: got {mode!r}, allowed: {names}")
