"""The algorithms: rows of one table, points in one small algebra.

signal x normalisation x aggregation x ratio rule x KL. What the columns mean stands at `Algorithm`; the operators, with
equations and sources, in `advantages` and `losses`; the loop that uses them in `train`. "Agent" is the role: a life is
in too few members of a group to be normalised on its own.

Where we differ from the sources, in every row: one gradient step per batch of episodes unless `epochs` says otherwise;
Adam; the value of a call is one number for all its tokens, by default the return of its life (which for the team reward
is the team's, also for lives that have left); a penalty in the reward is the sum over the call's tokens; only tokens
with an alternative count; a cell without spread has advantage exactly 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ddpomdp.options import UsageError, choose, number, refusal, truth, whole
from ddpomdp_baselines import advantages, losses
from ddpomdp_baselines.critics import READS
from ddpomdp_baselines.experience import SIGNALS


@dataclass(frozen=True)
class Algorithm:
    """One row.

    Attributes:
      source: paper or code the row follows.
      signal: what a call is judged by: the return of its "life", the life's return "to_go", the pay of the "call"; or
        "counterfactual": the return of its life, where members of a group are alternatives of one decision to speak,
        drawn by the policy after the same prefix and played on with the same luck, and only that decision is learned
        from; or "gae": the generalised advantage of its step, by a critic.
      reward: preset of the reward, unless the environment's options name one; None: the environment's own.
      lead: whether the lead learns too, where there are others and the run does not say who learns.
      per_role: weights per role; those of a network from a file begin as copies.
      sample: what one sample of the statistics is: "trajectory", "call" or "token".
      center: "mean", "leave_one_out" or "none", over `center_scope`.
      scale: "std" or "none", over `scale_scope`.
      ddof: of the standard deviation.
      eps: added to the standard deviation.
      aggregation: of token losses, see `losses.token_weights`.
      constant: the divisor of aggregation "sum_constant".
      ratio: "clip" (of the token ratio) or "none" (plain policy gradient).
      clip_low: ratios below 1 - clip_low are cut.
      clip_high: ratios above 1 + clip_high are cut.
      dual_clip: bound of the loss for negative advantages, in advantages; None: none.
      epochs: gradient steps per batch of episodes.
      kl: estimator of the divergence from the policy that training began with, a term of the loss.
      kl_weight: of that term; 0: none.
      kl_where: the term is part of the "loss", or taken off the value of each call ("reward") before normalisation.
      entropy: weight of an entropy bonus.
      critic: "none"; for signal "gae" what the critic reads: "plain", the view of the moment, or "prefix", also the
        trace so far.
      decay: of GAE, its lambda; there is no discount.
      critic_steps: gradient steps of the critic per batch of episodes.
      critic_rate: their learning rate.
      fold: a critic that reads the trace reads the lead's context, finished branches folded into one row each.
      rows: of a trace, that the critic reads; a share that did not fit is in the curves.
    """

    source: str
    signal: str = "life"
    reward: str | None = None
    lead: bool = True
    per_role: bool = False
    sample: str = "trajectory"
    center: str = "mean"
    center_scope: str = "group"
    scale: str = "std"
    scale_scope: str = "group"
    ddof: int = 1
    eps: float = 1e-6
    aggregation: str = "token_mean"
    constant: float = 256.0
    ratio: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    epochs: int = 1
    kl: str = "k3"
    kl_weight: float = 0.0
    kl_where: str = "loss"
    entropy: float = 0.0
    critic: str = "none"
    decay: float = 0.95
    critic_steps: int = 5
    critic_rate: float = 1e-3
    fold: bool = False
    rows: int = 1024

    def looks_at_groups(self) -> bool:
        """Whether a statistic is taken inside a group, so that one member would have nothing to compare with."""
        scopes = ((self.center, self.center_scope), (self.scale, self.scale_scope))
        return any(kind != "none" and scope.startswith("group") for kind, scope in scopes)


SCOPES = ("group", "group_agent", "agent", "batch")
CHOICES: dict[str, tuple[str, ...]] = {
    "signal": SIGNALS,
    "sample": advantages.SAMPLES,
    "center": advantages.CENTERS,
    "center_scope": SCOPES,
    "scale": advantages.SCALES,
    "scale_scope": SCOPES,
    "aggregation": losses.MODES,
    "ratio": ("clip", "none"),
    "kl": losses.ESTIMATORS,
    "kl_where": ("loss", "reward"),
    "critic": ("none", *READS),
}
RANGES = {
    "eps": (0.0, 1.0),
    "constant": (1e-6, 1e9),
    "clip_low": (0.0, 1.0),
    "clip_high": (0.0, 1e6),
    "kl_weight": (0.0, 1e6),
    "entropy": (0.0, 1e6),
    "decay": (0.0, 1.0),
    "critic_rate": (0.0, 1e3),
}

_DR_MAS = "Dr. MAS, arXiv 2602.08847; langfengQ/DrMAS 19c632bc"
_PLUS = {"sample": "token", "ddof": 0, "kl": "k1", "kl_weight": 0.01, "kl_where": "reward"}
_AGENT = {"sample": "call", "center_scope": "group_agent", "scale_scope": "group_agent", "dual_clip": 3.0}

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Algorithm("DeepSeekMath, arXiv 2402.03300; std as in verl b178a3cd", aggregation="sequence_mean"),
    "dr_grpo": Algorithm("arXiv 2503.20783", scale="none", aggregation="sum_constant"),
    "rloo": Algorithm(
        "arXiv 2402.14740", center="leave_one_out", scale="none", aggregation="sum_constant", ratio="none"
    ),
    "dr_mas": Algorithm(_DR_MAS, **_AGENT),
    "dr_mas_mean": Algorithm(f"{_DR_MAS}, table 3", **{**_AGENT, "scale_scope": "group"}),
    "dr_mas_std": Algorithm(f"{_DR_MAS}, table 3", **{**_AGENT, "center_scope": "group"}),
    "global_call": Algorithm(
        f"control that {_DR_MAS} lacks", **{**_AGENT, "center_scope": "group", "scale_scope": "group"}
    ),
    "c3": Algorithm(
        "C3, arXiv 2603.06859; EIT-EAST-Lab/C3 628185be, reward_only, baseline_mode loo",
        signal="counterfactual",
        center="leave_one_out",
        scale="none",
    ),
    "agent_trajectory": Algorithm(f"control that {_DR_MAS} lacks", **{**_AGENT, "sample": "trajectory"}),
    "reinforce_pp": Algorithm(
        "REINFORCE++, arXiv 2501.03262", signal="to_go", center_scope="batch", scale_scope="batch", **_PLUS
    ),
    "mappa": Algorithm(
        "MAPPA, arXiv 2601.23228; ltjed/multiagent-coaching ed66921d",
        signal="call",
        reward="mappa",
        lead=False,
        per_role=True,
        center_scope="agent",
        scale_scope="agent",
        **_PLUS,
    ),
    "mappo": Algorithm(
        "MAPPO, arXiv 2103.01955; GAE, arXiv 1506.02438",
        signal="gae",
        critic="plain",
        sample="call",
        center_scope="batch",
        scale_scope="batch",
        ddof=0,
        entropy=0.01,
    ),
}


def names() -> list[str]:
    """All algorithms."""
    return list(ALGORITHMS)


def find(name: str, changes: Mapping[str, Any] | None = None) -> Algorithm:
    """A row of the table, with some of its columns changed.

    Raises:
      ValueError: unknown name or column, with close matches and what is allowed.
    """
    choose("algorithm", name, ALGORITHMS)
    columns = [field.name for field in fields(Algorithm)]
    for column in changes or {}:
        if column not in columns:
            raise UsageError(refusal("column of the algorithm table", column, columns))
    row = replace(ALGORITHMS[name], **(changes or {}))
    for column, allowed in CHOICES.items():
        choose(column, getattr(row, column), allowed)
    for column in ("lead", "per_role", "fold"):
        truth(column, getattr(row, column))
    for column, (low, high) in RANGES.items():
        number(column, getattr(row, column), low, high)
    whole("ddof", row.ddof, 0, 1)
    whole("epochs", row.epochs, 1, 1_000)
    whole("critic_steps", row.critic_steps, 1, 1_000)
    whole("rows", row.rows, 1, 10**6)
    if (row.signal == "gae") != (row.critic != "none"):
        raise UsageError(f"critic: got {row.critic!r} with signal {row.signal!r}; signal gae has one, and no other")
    if row.fold and row.critic != "prefix":
        raise UsageError(f"fold: got True with critic {row.critic!r}, allowed: critic prefix")
    if row.dual_clip is not None:
        number("dual_clip", row.dual_clip, 1.0 + 1e-6, 1e6)
    return row
