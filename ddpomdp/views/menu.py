"""Calls as actions of other libraries: a place in the menu with an exact mask, or the tokens of a turn.

Axis letters: N slot, K menu call, A argument position.
"""

from typing import Any

import gymnasium.spaces as spaces
import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.harness import Harness, Legal

KINDS = ("menu", "tokens")


class Menu:
    """`Discrete(K)`: every complete call of the harness in a fixed order, with an exact mask int8[K].

    ValueError where K is over 1,024; it names the arguments to coarsen.
    """

    def __init__(self, harness: Harness):
        self.turns = harness.menu  # int32[K, 1+A]
        self.harness = harness

    def space(self) -> spaces.Discrete:
        """A new action space."""
        return spaces.Discrete(len(self.turns))

    def mask_space(self) -> spaces.Box:
        """A new space of masks."""
        return spaces.Box(0, 1, (len(self.turns),), np.int8)

    def masks(self, legal: Legal) -> jax.Array:
        """int8[N, K]: 1 where the call is legal. Jittable, all slots at once."""
        return self.harness.menu_mask(legal).astype(jnp.int8)

    def of_slot(self, masks: Any, slot: int) -> np.ndarray:
        """One slot's mask int8[K], a copy."""
        return np.array(masks[slot])

    def turn(self, action: Any, whose: str) -> np.ndarray:
        """int32[1+A] of an action; ValueError naming `whose` action it is, what was got and what is allowed."""
        value = _whole(action, (), whose)
        if not 0 <= int(value) < len(self.turns):
            raise ValueError(f"{whose}: got {int(value)}, allowed: 0 to {len(self.turns) - 1}")
        return self.turns[int(value)]

    def batch(self, actions: Any, num_envs: int, whose: str) -> np.ndarray:
        """int32[B, 1+A] of a batch of actions; ValueError as in `turn`, naming the environment."""
        values = _whole(actions, (num_envs,), f"actions of {whose}")
        wrong = np.flatnonzero((values < 0) | (values >= len(self.turns)))
        if wrong.size:
            got = f"{whose} in environment {wrong[0]}: got {values[wrong[0]]}"
            raise ValueError(f"action of {got}, allowed: 0 to {len(self.turns) - 1}")
        return self.turns[values]


class Tokens:
    """`MultiDiscrete`: tool and arguments, position by position.

    The mask is a tuple of int8 arrays, one per position: what is legal there after *some* legal beginning. So it
    allows every legal turn and some that are not; those become `wait`. Whoever wants none of these samples from
    `Env.legal_tokens`, or uses the menu.
    """

    def __init__(self, harness: Harness):
        arguments = [[tool.arguments[i] for tool in harness.tools if i < len(tool.arguments)] for i in _args(harness)]
        self.sizes = (len(harness.tools), *(max(len(argument.values) for argument in some) for some in arguments))
        self.harness = harness

    def space(self) -> spaces.MultiDiscrete:
        """A new action space."""
        return spaces.MultiDiscrete(np.asarray(self.sizes))

    def mask_space(self) -> spaces.Tuple:
        """A new space of masks."""
        return spaces.Tuple([spaces.Box(0, 1, (size,), np.int8) for size in self.sizes])

    def masks(self, legal: Legal) -> tuple[jax.Array, ...]:
        """int8[N, values] per position. Jittable, all slots at once."""
        harness, n = self.harness, legal.tools.shape[0]
        blank = jnp.zeros((n, 1 + harness.num_args), jnp.int32)
        tools = harness.legal_tokens(legal, blank, 0)[:, : self.sizes[0]]
        masks = [tools]
        for position in _args(harness):
            allowed = jnp.zeros((n, self.sizes[1 + position]), bool)
            for tool in range(len(harness.tools)):
                after = harness.legal_tokens(legal, blank.at[:, 0].set(tool), 1 + position)
                allowed = allowed | (after[:, : allowed.shape[1]] & tools[:, tool : tool + 1])
            masks.append(allowed)
        return tuple(mask.astype(jnp.int8) for mask in masks)

    def of_slot(self, masks: Any, slot: int) -> tuple[np.ndarray, ...]:
        """One slot's mask, copies."""
        return tuple(np.array(mask[slot]) for mask in masks)

    def turn(self, action: Any, whose: str) -> np.ndarray:
        """int32[1+A] of an action; ValueError naming `whose` action it is, what was got and what is allowed."""
        if isinstance(action, list | tuple):
            action = _array(action, whose)
        return self._in_range(_whole(action, (len(self.sizes),), whose)[None], [whose])[0]

    def batch(self, actions: Any, num_envs: int, whose: str) -> np.ndarray:
        """int32[B, 1+A] of a batch of actions; ValueError as in `turn`, naming the environment."""
        values = _whole(actions, (num_envs, len(self.sizes)), f"actions of {whose}")
        return self._in_range(values, [f"action of {whose} in environment {i}" for i in range(num_envs)])

    def _in_range(self, values: np.ndarray, whose: list[str]) -> np.ndarray:
        wrong = np.argwhere((values < 0) | (values >= np.asarray(self.sizes)))
        if wrong.size:
            row, position = wrong[0].tolist()
            field = "tool" if position == 0 else f"argument {position}"
            got = f"{whose[row]}: {field}: got {values[row, position]}"
            raise ValueError(f"{got}, allowed: 0 to {self.sizes[position] - 1}")
        return values.astype(np.int32)


def _args(harness: Harness) -> range:
    return range(harness.num_args)


def _array(value: Any, whose: str) -> np.ndarray:
    """A sequence as an array; ValueError for ragged ones."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{whose}: got {_shown(value)}, which is no array of whole numbers") from error


def _whole(value: Any, shape: tuple[int, ...], whose: str) -> np.ndarray:
    """An integer array of `shape`; ValueError naming `whose` value it is and what is wrong: kind, dtype or shape."""
    if isinstance(value, bool) or not (isinstance(value, int) or hasattr(value, "dtype")):
        if not (shape and isinstance(value, list | tuple)):
            raise ValueError(f"{whose}: got {_shown(value)}, must be a whole number or an array of them")
        value = _array(value, whose)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{whose}: got {_shown(value)}, which does not fit 64 bits")
        value = np.int64(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{whose}: dtype {array.dtype}, must be an integer type")
    if array.shape != shape:
        raise ValueError(f"{whose}: shape {array.shape}, must be {shape}")
    return array


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:77]}..."
