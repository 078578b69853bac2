"""When to stop: exact oracles, the rules in use, and a head that learns it (docs/stopping.md)."""

from ddpomdp_baselines.stopping.head import Head
from ddpomdp_baselines.stopping.known import full_information, process, prophet, snell
from ddpomdp_baselines.stopping.report import evaluate
from ddpomdp_baselines.stopping.worlds import WORLDS, world

__all__ = ["WORLDS", "Head", "evaluate", "full_information", "process", "prophet", "snell", "world"]
