"""The coach of tasks whose work is right or wrong (Search-v0, Math-v0): a score per action by a rubric, ours.

MAPPA's rubric speaks of files and metrics (datascience_coach.py). Here its bands are kept for what these tasks have:
8 to 9 for correct work, 0 to 2 for what causes a failure. A coach that reads knows whether work is right; one that does
not takes what a tool said for good. Axis letters: T tick, N slot.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.coach import RIGHT, WRONG, Actions
from ddpomdp.enums import ResultCode
from ddpomdp.harness import FIRST_TASK_TOOL, WAIT
from ddpomdp_envs.coach_slips import check_rates, heard, slips

GOOD, TAKEN_FOR_GOOD, BAD = 9, 8, 2
ILLEGAL, NEUTRAL, OTHER = 1, 5, 6
# Of task tools by what their caller is told; whatever finds or judges something is good or bad by its truth.
_BY_CODE = {
    ResultCode.IN_PROGRESS: NEUTRAL,
    ResultCode.FOUND: TAKEN_FOR_GOOD,
    ResultCode.ACCEPTED: TAKEN_FOR_GOOD,
    ResultCode.REJECTED: TAKEN_FOR_GOOD,
    ResultCode.EMPTY: 4,
    ResultCode.FAULT: 4,
    ResultCode.REFUSED: 3,
}


@dataclass(frozen=True)
class Rubric:
    """A simulated coach.

    Attributes:
      accuracy: probability that it knows in an episode which work is right.
      noise: standard deviation of a normal added.
      parse_failure: probability that a score is lost and 5 stands in.

    Scored are actions of workers, and task tools of a lone lead: right work 9, wrong work 2 (8 by a coach that does not
    know), nothing found or a fault 4, a refused call 3, an illegal one 1, a chosen wait 5, messages and returns 6.
    """

    accuracy: Any = 1.0
    noise: Any = 0.0
    parse_failure: Any = 0.0

    def __post_init__(self):
        """Refuse probabilities that are none."""
        check_rates(self)

    def score(self, actions: Actions, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(f32[T, N] in 0 to 10, bool[T, N] scored) of one episode."""
        k_read, *k_slips = jax.random.split(key, 3)
        works = actions.tool >= FIRST_TASK_TOOL
        scored = (actions.tool >= 0) & ((actions.role > 0) | works)
        table = jnp.asarray([_BY_CODE.get(code, OTHER) for code in ResultCode])
        score = jnp.where(works, table[actions.code], OTHER)
        reads = jax.random.uniform(k_read) < self.accuracy
        score = jnp.where(reads & (actions.log == RIGHT), GOOD, score)
        score = jnp.where(reads & (actions.log == WRONG), BAD, score)
        score = jnp.where(actions.tool == WAIT, NEUTRAL, score)
        score = jnp.where(actions.valid, score, ILLEGAL).astype(jnp.float32)
        told = heard(*slips(score, self.noise, self.parse_failure, k_slips))
        return jnp.where(scored, told, 0.0), scored
