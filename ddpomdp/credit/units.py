"""Units: which decisions of an episode belong together. A unit is a group-by over its events.

Axis letters: T tick, N slot, A argument position.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpomdp.enums import CreditUnit, Decision, EventKind
from ddpomdp.env import Env
from ddpomdp.options import UsageError, refusal
from ddpomdp.rollouts import Rollout

MESSAGES = (EventKind.MESSAGE, EventKind.RETURN)


@dataclass(frozen=True)
class Told:
    """The decisions of a rollout. Numpy, [T, N] each unless said otherwise."""

    decides: np.ndarray  # bool
    kind: np.ndarray  # EventKind
    decision: np.ndarray  # Decision
    uid: np.ndarray  # -1 none; of whoever was there
    role: np.ndarray
    turns: np.ndarray  # int32[T,N,1+A]
    used: np.ndarray  # bool[T,N,1+A] positions of the tool's own


def told(env: Env, rollout: Rollout) -> Told:
    """Read a rollout of one episode; ValueError if it has a batch axis."""
    events = rollout.next_ts.events
    uid = np.asarray(events.uid)
    if uid.ndim != 2:
        raise UsageError(f"rollout: events of shape {uid.shape}, must be (ticks, slots): credit is of one episode")
    turns = np.asarray(events.tokens)
    arguments = np.asarray([len(tool.arguments) for tool in env.harness.tools])
    return Told(
        decides=np.asarray(events.is_decision),
        kind=np.asarray(events.kind),
        decision=np.asarray(events.decision),
        uid=uid,
        role=np.asarray(events.role),
        turns=turns,
        used=np.arange(turns.shape[-1]) <= arguments[np.clip(turns[..., 0], 0, len(arguments) - 1)][..., None],
    )


def groups(told: Told, unit: CreditUnit) -> np.ndarray:
    """int[T, N]: to which unit each decision belongs, 0 .. U - 1; -1: to none of this kind, or no decision.

    TEAM has one; ORCHESTRATOR the root's decisions; ROLE one per role; AGENT one per life; TURN, MESSAGE (also
    returns), TOOL_CALL and TOKEN one per such turn.
    """
    here, life = told.decides, told.uid
    if unit == CreditUnit.TEAM:
        return np.where(here, 0, -1)
    if unit == CreditUnit.ORCHESTRATOR:
        return np.where(here & (life == 0), 0, -1)
    if unit in (CreditUnit.ROLE, CreditUnit.AGENT):
        names = told.role if unit == CreditUnit.ROLE else life
        ids = np.full(here.shape, -1)
        ids[here] = np.unique(names[here], return_inverse=True)[1]
        return ids
    if unit == CreditUnit.MESSAGE:
        here = here & np.isin(told.kind, MESSAGES)
    if unit == CreditUnit.TOOL_CALL:
        here = here & (told.kind == EventKind.TOOL)
    ids = np.full(here.shape, -1)
    ids[here] = np.arange(here.sum())
    return ids


def decision_mask(decides: Any, kind: Any, decision: Any, wanted: Decision | str) -> np.ndarray:
    """bool, in the shape of what is given: decisions of a kind. "tool" are calls of the task's own tools."""
    if wanted == "tool":
        return np.asarray(decides) & (np.asarray(kind) == EventKind.TOOL)
    return np.asarray(decides) & (np.asarray(decision) == wanted)


def decision_kind(name: Decision | str | int) -> Decision | str:
    """A kind of decision by name or number: spawn, delegate, communicate, aggregate, stop, or tool."""
    allowed = [kind.name.lower() for kind in Decision if kind != Decision.NONE]
    if isinstance(name, str) and name.lower() == "tool":
        return "tool"
    if isinstance(name, str) and name.lower() in allowed:
        return Decision[name.upper()]
    if isinstance(name, int) and not isinstance(name, bool) and name in tuple(Decision) and name != Decision.NONE:
        return Decision(name)
    raise UsageError(refusal("decision", name, [*allowed, "tool"]))
