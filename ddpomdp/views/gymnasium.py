"""Gymnasium's view of one episode: the agent is the root, everyone else follows the task's worker rule.

**A step is a decision**: the root's call, then every tick in which it could only wait (the gate, or a `wait` of its
own), until it has a choice again or the episode ends. The reward is the root's, summed over those ticks, and
`info["ticks"]` says how many there were. With `every_tick=True` a step is one tick, and forced waits are steps whose
mask leaves nothing else: less to learn from per step, but faster in large batches, where a step waits for the episode
that takes most ticks to its next decision.

`terminated`: the root stopped, or a budget ran out. `truncated`: the horizon. The last observation is what the root
would see if the episode went on.

**Info** has the same keys after every reset and step: `seed` (of the episode: `reset(seed)` with it repeats the
episode), `ticks`, `masked_calls` (so far in the episode: calls that were not legal and became `wait`), `action_mask`
where `mask_in="info"`, and all of `TimeStep.info`.
"""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from ddpomdp.enums import StopReason
from ddpomdp.options import UsageError, choose, truth
from ddpomdp.registry import make
from ddpomdp.views import seeds
from ddpomdp.views.flat import Outlook
from ddpomdp.views.menu import KINDS
from ddpomdp.views.packed import fetch
from ddpomdp.views.programs import Decided, Decisions, program

WHOSE = "lead_0"  # the root's name, as in the PettingZoo view


def decisions(env_id: str, actions: str, every_tick: bool, options: dict[str, Any]) -> Decisions:
    """The compiled steps of an environment for the root; ValueError for bad arguments, with what is allowed."""
    choose("actions", actions, KINDS)
    truth("every_tick", every_tick)
    return program(Decisions, make(env_id, **options), actions)


class Orchestrator(gymnasium.Env[Any, Any]):
    """The root's view of one episode, as made by `gymnasium.make("ddpomdp:ddpomdp/Search-v0", **options)`."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        actions: str = "menu",
        mask_in: str = "observation",
        obs_key: str = "observation",
        every_tick: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ):
        """Bind the view to an environment.

        Args:
          env_id: as in `ddpomdp.make`.
          actions: "menu" (`Discrete(K)`, exact mask int8[K]) or "tokens" (`MultiDiscrete`, a mask per position).
          mask_in: "observation" (a dict of vector f32[D] and `action_mask`) or "info" (the vector alone).
          obs_key: the vector's key in that dict, "observation" or "observations".
          every_tick: a step is one tick, not one decision.
          render_mode: None or "ansi".
          options: of the environment, as in `ddpomdp.make`.

        Raises:
          ValueError: unknown id, option or value, with what is allowed; a menu of more than 1,024 calls.
        """
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode: got {render_mode!r}, allowed: None, 'ansi'")
        self._outlook = Outlook(mask_in, obs_key)
        self._program, self._every_tick = decisions(env_id, actions, every_tick, options), every_tick
        self.env, self.feature_names, self.render_mode = self._program.env, self._program.features, render_mode
        self.action_space = self._program.actions.space()
        self.observation_space = self._outlook.space(len(self.feature_names), self._program.actions.mask_space())
        self._closed, self._state, self._told = False, None, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: (observation, info).

        Args:
          seed: names the episode, and the sequence of episodes that follow from resets without a seed.
          options: has no effect.
        """
        if self._closed:
            raise ClosedEnvironmentError("reset: the environment is closed")
        seed = seeds.checked(seed)
        super().reset(seed=seed)
        self._seed = seeds.drawn(self.np_random) if seed is None else seed
        self._luck, self._state, told = self._program.one_reset(seeds.words(self._seed))
        self._told, self._masked = fetch(told), 0
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision of the root: (observation, reward, terminated, truncated, info).

        Raises:
          ValueError: an action of the wrong kind, shape, dtype or range. Nothing has changed then.
          ResetNeeded: before the first reset, or after the end.
        """
        if self._present().terminated or self._present().truncated:
            raise ResetNeeded("the episode has ended: call reset()")
        turn = self._program.actions.turn(action, f"action of {WHOSE}")
        self._state, told = self._program.one_step(self._luck, self._state, turn, self._every_tick)
        told = self._told = fetch(told)
        self._masked += int(told.masked)
        return self._observation(), float(told.reward), bool(told.terminated), bool(told.truncated), self._info()

    def action_masks(self) -> Any:
        """The mask of the next action, as in the observation: what sb3-contrib's MaskablePPO asks for."""
        return jax.tree.map(np.array, self._present().mask)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The episode in a line; None without a render mode."""
        if self.render_mode is None:
            return None
        info = self._present().info
        words = f"{info['wall_s']:.0f} s, {info['alive']} alive, {info['tokens']} tokens, quality {info['quality']:.3f}"
        state: Any = self._state
        return f"tick {int(state.tick)}, {StopReason(int(state.stop_reason)).name.lower()}: {words}"

    def close(self) -> None:
        """Let go of the state; closing twice is allowed."""
        self._closed, self._state, self._told = True, None, None

    def _present(self) -> Decided:
        if self._closed:
            raise ClosedEnvironmentError("the environment is closed")
        if self._told is None:
            raise ResetNeeded("call reset() before anything else")
        return self._told

    def _observation(self) -> Any:
        return self._outlook.observation(np.array(self._present().observation), self.action_masks())

    def _info(self) -> dict[str, Any]:
        told = self._present()
        return {
            "seed": self._seed,
            "ticks": int(told.ticks),
            "masked_calls": self._masked,
            **{name: value.item() for name, value in told.info.items()},
            **(self._outlook.info(self.action_masks()) if self._outlook.mask_in == "info" else {}),
        }
