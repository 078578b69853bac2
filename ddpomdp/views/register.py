"""Gymnasium ids: `ddpomdp/Search-v0` for every registered environment, none of which is imported for that."""

import gymnasium

from ddpomdp import plugins
from ddpomdp.options import UsageError

NAMESPACE = "ddpomdp"


def register() -> None:
    """Register what the entry-point group `ddpomdp.envs` lists and Gymnasium does not know yet.

    Gymnasium reads no entry points, so `import ddpomdp` calls this. It must not fail there: an id that is registered
    twice by different packages, or that Gymnasium cannot read, is left to `ddpomdp.make`, which says what is wrong.
    """
    try:
        points = plugins.found("ddpomdp.envs")
    except UsageError:
        return
    for env_id in points:
        full = f"{NAMESPACE}/{env_id}"
        if full in gymnasium.registry:
            continue
        try:
            gymnasium.register(
                full,
                entry_point="ddpomdp.views.gymnasium:Orchestrator",
                vector_entry_point="ddpomdp.views.vector:VectorOrchestrator",
                kwargs={"env_id": env_id},
            )
        except gymnasium.error.Error:
            continue
