"""The engine against its slow twin in plain Python (tests/twin), step by step on the same turns: Search-v0."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import play
import pytest
from twin import luck
from twin.compare import Tally, assert_happened, play_and_compare
from twin.engine import BUDGET, DESPAWNED, HORIZON, STOPPED, WITH_EPISODE

from ddpomdp import make
from ddpomdp.luck import child_lineage, draw, unit

SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "tiny"},
    "swarm": {**play.SHAPES["swarm"], "reward": "hybrid"},
    "single": {"preset": "tiny", "topology": "single", "max_ticks": 64, "model": "weak", "max_turns": 40},
    "small": {"preset": "small", "max_ticks": 100, "reward": "tool"},
    "weak": {"preset": "small", "max_ticks": 90, "model": "weak", "capacity": 12, "num_subtasks": 16, "poison": 0.4},
    "hierarchical": {**play.SHAPES["hierarchical"], "reward": "parl"},
    "deep": {
        "preset": "small",
        "topology": "hierarchical",
        "capacity": 12,
        "num_subtasks": 12,
        "claims_per_row": 2,
        "max_ticks": 120,
        "lead_blocks": False,
        "max_tokens": 60_000,
        "model": "weak",
        "delegate_chunks": (1, 2, "even"),
        "delegate_briefs": ("short", "standard", "detailed"),
        "counts": (1, 2, 4),
        "correlation": 0.3,
        "injection": 0.3,
        "obey": 0.6,
        "wait_limit_ms": 20_000,
    },
}
for _name in ("managed", "independent", "centralized", "debate"):
    SETTINGS[_name] = {**SETTINGS["swarm"], "topology": _name, "lead_blocks": False}
SLOW = dict.fromkeys(("managed", "independent", "centralized", "debate"), 40)
SLOW |= {"tiny": 80, "swarm": 70, "single": 60, "small": 60, "weak": 50, "hierarchical": 70, "deep": 70, "narrow": 50}


def environment(name: str) -> Any:
    return play.make_shape("narrow") if name == "narrow" else make("Search-v0", **SETTINGS[name])


TOOLS = ("wait", "spawn", "delegate", "message", "return", "aggregate", "despawn", "stop", "search", "check")
ALWAYS = (
    *(("tool", tool) for tool in TOOLS),
    *(("result_code", code) for code in range(10)),
    *(("end_reason", end) for end in (DESPAWNED, WITH_EPISODE)),
    *(("aggregate", rule) for rule in ("majority", "verdict", "best", "last", "union")),
    *(("delegate", rows) for rows in ("next", "missing", "conflicting", "again")),
    *(("message", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("return", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("wait", what) for what in ("one", "half", "all")),
    *(f"info.{name}" for name in ("adopted", "illegal", "refused_births", "refused_claims", "empty_selections")),
    *(f"info.{name}" for name in ("lost_returns", "mail_undeliverable", "mail_late", "mail_in_flight", "beyond_end_s")),
    *(f"info.{name}" for name in ("quality", "critical_steps", "returned_lives", "deaths")),
    ("stop_reason", STOPPED),
    "late",
    ("tainted", "trusted"),  # somebody obeyed an instruction, or heard of one who did
    *((channel, sign) for channel in ("role", "debate", "tool") for sign in "+-"),
)


def test_the_hash_of_luck():
    rng = np.random.default_rng(0)
    for _ in range(50):
        key, lineage = (rng.integers(0, 2**32, 2, dtype=np.uint32) for _ in range(2))
        turn, purpose = int(rng.integers(0, 1000)), int(rng.integers(0, 20))
        theirs = draw(jnp.asarray(key), jnp.asarray(lineage), jnp.int32(turn), purpose)
        ours = luck.draw(tuple(map(int, key)), tuple(map(int, lineage)), turn, purpose)
        assert ours == tuple(int(x) for x in theirs)
        assert luck.unit(ours[0]) == float(unit(theirs[0]))
        child = luck.child(tuple(map(int, lineage)), turn, 3)
        assert child == tuple(int(x) for x in child_lineage(jnp.asarray(lineage), jnp.int32(turn), jnp.int32(3)))


def test_engine_and_twin_agree():
    tally = Tally()
    play_and_compare("deep", environment("deep"), 60, 70, 5, tally)
    assert_happened(tally, *ALWAYS)
    assert tally.ticks > 2_000


@pytest.mark.slow
def test_engine_and_twin_agree_in_500_episodes():
    tally = Tally()
    for name, episodes in SLOW.items():
        env = environment(name)
        play_and_compare(name, env, episodes, env.spec.max_ticks + 2, 11, tally)
    assert_happened(
        tally, *ALWAYS, ("stop_reason", BUDGET), ("stop_reason", HORIZON), ("depth", 3), "info.success", "info.row_f1"
    )
    assert_happened(tally, "info.refused_rows", "info.refused_places")
    assert tally.episodes >= 500
