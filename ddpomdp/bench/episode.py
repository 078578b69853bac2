"""One finished episode in numbers: the one place that knows where a rollout keeps them."""

from typing import Any

import numpy as np

INFO = {  # row key: (key of TimeStep.info at the last tick, type)
    "quality": ("quality", float),
    "wall_s": ("wall_s", float),
    "serial_s": ("serial_s", float),
    "critical_steps": ("critical_steps", int),
    "tokens": ("tokens", int),
    "turns": ("turns", int),
    "births": ("births", int),
    "illegal": ("illegal", int),
    "refused": ("refused", int),
}
ROOT = 0  # the root's uid


def episode_row(rollout: Any) -> dict[str, Any]:
    """The row of a `Rollout` of one episode (axes T, N): reward, the info above, stop reason, ticks, turns by kind.

    `reward` is the root's: the sum over its ticks, and what fell due later. A non-finite number becomes None.
    """
    from ddpomdp import EventKind, StopReason

    ts = rollout.ts
    last = np.asarray(ts.last)
    reward = np.asarray(ts.reward, np.float64)[np.asarray(ts.uid) == ROOT].sum()
    reward += float(np.asarray(rollout.late_reward)[ROOT])
    kinds = np.asarray(ts.events.kind)[np.asarray(ts.events.valid)]
    info = {key: _number(np.asarray(ts.info[name])[-1], kind) for key, (name, kind) in INFO.items()}
    return {
        "reward": _number(reward, float),
        **info,
        "stop_reason": StopReason(int(np.asarray(ts.stop_reason)[-1])).name.lower(),
        "ticks": int(last.argmax()) + 1 if last.any() else len(last),
        "turns_by_kind": {kind.name.lower(): int((kinds == kind).sum()) for kind in EventKind},
    }


def _number(value: Any, kind: type) -> float | int | None:
    number = value.item()
    return kind(number) if np.isfinite(number) else None
