"""Which estimator exists at which unit, and what each promises: the table of docs/credit.md as data."""

from dataclasses import dataclass
from typing import Literal

from ddpomdp.enums import CreditUnit
from ddpomdp.options import UsageError, choose

_COARSE = (CreditUnit.TEAM, CreditUnit.ORCHESTRATOR, CreditUnit.ROLE, CreditUnit.AGENT)
_TURNS = (CreditUnit.TURN, CreditUnit.MESSAGE, CreditUnit.TOOL_CALL)
_TOKEN = (CreditUnit.TOKEN,)


@dataclass(frozen=True)
class Estimator:
    """One row of the table.

    Attributes:
      units: where it exists.
      conserves: "mean" or "sum" of the units' credits is `Credit.total` at every level of the lattice; "": neither.
      unbiased: the difference of its expected credit between two alternatives of a decision is that of E[R | d],
        where the reward is the team's.
      branches: whether it plays episodes of its own; then `assign` needs policy, params and key.
      about: what it is.
    """

    units: tuple[CreditUnit, ...]
    conserves: Literal["mean", "sum", ""]
    unbiased: bool
    branches: bool
    about: str


ESTIMATORS: dict[str, Estimator] = {
    "shared": Estimator(_COARSE + _TURNS + _TOKEN, "mean", True, False, "the team's return R, for everyone"),
    "leave_one_out": Estimator(
        _COARSE + _TURNS + _TOKEN, "", True, True, "R less the mean of other episodes of the same task draw"
    ),
    "counterfactual": Estimator(
        _TURNS, "", True, True, "R less the mean over alternatives of the turn, same prefix and luck (C3)"
    ),
    "removal": Estimator(
        _COARSE + _TURNS,
        "",
        True,
        True,
        "R less that without the unit: a turn becomes wait, lives hand back their work untouched",
    ),
    "shapley": Estimator(_COARSE, "sum", False, True, "mean marginal return over orders in which agents join"),
    "process": Estimator(_COARSE + _TURNS, "sum", False, False, "what its turns were paid in channels beside team"),
    "return_to_go": Estimator(_TURNS + _TOKEN, "", True, False, "what its life was paid from that turn on"),
    "critic": Estimator(_TURNS + _TOKEN, "", True, False, "return-to-go less a value function of what was seen"),
}


def find(estimator: str, unit: CreditUnit | int) -> tuple[Estimator, CreditUnit]:
    """The row of an estimator and the unit; ValueError names what is allowed."""
    choose("estimator", estimator, ESTIMATORS)
    if isinstance(unit, bool) or not isinstance(unit, int) or unit not in tuple(CreditUnit):
        raise UsageError(f"unit: got {unit!r}, allowed: {', '.join(f'CreditUnit.{u.name}' for u in CreditUnit)}")
    row, unit = ESTIMATORS[estimator], CreditUnit(unit)
    if unit not in row.units:
        names = ", ".join(f"CreditUnit.{u.name}" for u in row.units)
        raise UsageError(f"estimator {estimator!r} does not exist at CreditUnit.{unit.name}; allowed: {names}")
    return row, unit


def markdown() -> str:
    """The table as it stands in docs/credit.md."""
    units = [unit.name.lower().replace("_", " ") for unit in CreditUnit]
    lines = [
        f"| estimator | {' | '.join(units)} | adds up as | plays further episodes | what it is |",
        f"| --- | {' | '.join(['---'] * len(units))} | --- | --- | --- |",
    ]
    for name, row in ESTIMATORS.items():
        marks = " | ".join("yes" if unit in row.units else "" for unit in CreditUnit)
        plays = "yes" if row.branches else ""
        lines.append(f"| `{name}` | {marks} | {row.conserves} | {plays} | {row.about} |")
    return "\n".join(lines) + "\n"
