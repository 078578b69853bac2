"""When to stop: exact oracles, the rules in use, and a head that learns it (docs/stopping.md)."""

from ddpomdp_baselines.stopping.known import full_information, process, prophet, snell

__all__ = ["full_information", "process", "prophet", "snell"]
