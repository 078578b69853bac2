"""What an agent sees as one vector, the same for every agent, and how it leaves a view together with its mask.

Axis letters: N slot, D feature of the vector, C claim, P parent place, R roster row, M subtask.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.env import Spec
from ddpomdp.options import choose
from ddpomdp.timestep import Observation

MASK_IN = ("observation", "info")
OBS_KEYS = ("observation", "observations")
# All features are fractions or counters of at most 31 bits in some unit, so these bounds hold for all of them.
BOUND = 2.0**31


def feature_names(spec: Spec) -> tuple[str, ...]:
    """Names of the D features of a vector, in order: the life, its last result, its claims, its roster, its board."""
    return (
        "alive",
        "uid",
        *spec.self_features,
        *(f"result.{name}" for name in spec.result_features),
        *(f"claim_{c}.{name}" for c in range(spec.observed_claims) for name in spec.claim_features),
        *(f"roster_{r}.uid" for r in range(spec.roster)),
        *(f"roster_{r}.{name}" for r in range(spec.roster) for name in spec.roster_features),
        *(f"board_{m}.{name}" for m in range(spec.num_subtasks) for name in spec.board_features),
    )


def vectors(seen: Observation, alive: jax.Array, uid: jax.Array) -> jax.Array:
    """f32[N, D] of an observation; roster and board are those of the parent in that slot, else empty."""
    n = alive.shape[0]
    here = seen.parent_slot[:, None] == jnp.arange(n, dtype=jnp.int32)[None, :]  # [P, N]
    parent, place = jnp.any(here, axis=0), jnp.argmax(here, axis=0)

    def own(x: jax.Array, empty: float) -> jax.Array:
        rows = x[place].reshape(n, -1).astype(jnp.float32)
        return jnp.where(parent[:, None], rows, empty)

    return jnp.concatenate(
        [
            alive[:, None].astype(jnp.float32),
            uid[:, None].astype(jnp.float32),
            seen.self,
            seen.last_result,
            seen.claims.reshape(n, -1),
            own(seen.roster_uid, -1.0),
            own(seen.roster, 0.0),
            own(seen.board, 0.0),
        ],
        axis=-1,
    )


@dataclass(frozen=True)
class Outlook:
    """How observation and mask leave: together in a dict, or the vector alone with the mask in the info."""

    mask_in: str = "observation"
    obs_key: str = "observation"  # has no effect where the mask is in the info

    def __post_init__(self):
        """Refuse unknown words."""
        choose("mask_in", self.mask_in, MASK_IN)
        choose("obs_key", self.obs_key, OBS_KEYS)

    def space(self, num_features: int, mask_space: spaces.Space) -> spaces.Space:
        """A new observation space."""
        box = spaces.Box(-BOUND, BOUND, (num_features,), np.float32)
        if self.mask_in == "info":
            return box
        return spaces.Dict({self.obs_key: box, "action_mask": mask_space})

    def observation(self, vector: np.ndarray, mask: Any) -> Any:
        """An observation from arrays that nobody else holds."""
        return vector if self.mask_in == "info" else {self.obs_key: vector, "action_mask": mask}

    def info(self, mask: Any) -> dict[str, Any]:
        """What of the mask goes into the info."""
        return {"action_mask": mask} if self.mask_in == "info" else {}
