"""Math-v0 against its slow twin in plain Python (tests/twin/math.py), step by step on the same turns."""

from typing import Any

import pytest
from twin.compare import Tally, assert_happened, play_and_compare
from twin.engine import BUDGET, DESPAWNED, HORIZON, STOPPED, WITH_EPISODE

from ddpomdp_envs.math_env import make_env

SETTINGS: dict[str, dict[str, Any]] = {
    "swarm": {"topology": "swarm", "capacity": 7, "max_ticks": 90, "reward": "hybrid", "verifier": "strong"}
    | {"model": "r1-1.5b", "claims_per_row": 16, "correlation": 0.3, "context_limit": 9_000, "lead_blocks": False},
    "crew": {"max_ticks": 120, "capacity": 5, "claims_per_row": 16, "num_subtasks": 2, "reward": "tool"}
    | {"wait_limit_ms": 60_000, "fault": 0.2},
    "single": {"topology": "single", "max_ticks": 64, "capacity": 4, "max_turns": 40, "length_visible": False},
    "small": {"topology": "swarm", "max_ticks": 100, "max_tokens": 400_000, "length_cap": 4_096},
    "tiny": {"preset": "tiny", "topology": "swarm"},
    "vote": {"preset": "tiny", "oracle_form": "vote"},
    "many": {"preset": "calibration", "topology": "swarm", "capacity": 24, "max_ticks": 60, "model": "qwen3-4b"},
    "debate": {"topology": "debate", "capacity": 6, "max_ticks": 80, "num_subtasks": 2, "lead_blocks": False}
    | {"chunks": (1, 4), "counts": (1, 2, 4), "reward": "debate", "wait_limit_ms": 100_000},
    "managed": {"topology": "managed", "capacity": 6, "max_ticks": 80, "num_subtasks": 2, "lead_blocks": False},
    "independent": {"topology": "independent", "capacity": 6, "max_ticks": 60, "num_subtasks": 2},
    "centralized": {"topology": "centralized", "capacity": 6, "max_ticks": 80, "num_subtasks": 2, "lead_blocks": False},
    "full": {"topology": "single", "capacity": 4, "max_ticks": 220, "num_subtasks": 1, "model": "r1-1.5b"},
}
SLOW = {"swarm": 90, "crew": 120, "single": 80, "small": 70, "tiny": 60, "vote": 60, "many": 30, "full": 12}
SLOW |= {"debate": 80, "managed": 60, "independent": 40, "centralized": 60}
SEEN = (
    *(("tool", tool) for tool in ("wait", "delegate", "message", "return", "aggregate", "stop")),
    *(("tool", tool) for tool in ("solve", "run_code", "verify")),
    *(("result_code", code) for code in (1, 3, 4, 5, 7, 8, 9)),
    *(("aggregate", rule) for rule in ("majority", "verdict", "best", "last")),
    *(("delegate", rows) for rows in ("next", "missing", "conflicting", "again")),
    *(("delegate", brief) for brief in ("short", "standard", "detailed")),
    *(("message", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("return", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("role", role) for role in range(4)),
    *(f"info.{name}" for name in ("quality", "illegal", "empty_selections", "refused_rows", "tokens_tool")),
    ("end_reason", WITH_EPISODE),
    ("stop_reason", STOPPED),
    *((channel, sign) for channel in ("role", "debate", "tool") for sign in "+-"),
)


def test_engine_and_twin_agree():
    tally = Tally()
    play_and_compare("crew", make_env(**SETTINGS["crew"]), 60, 60, 5, tally)
    assert_happened(tally, *SEEN)
    assert tally.episodes >= 60 and tally.ticks > 1_500


def test_they_agree_on_a_debate():
    """Children have one role, write to each other, and wait for mail on its way."""
    tally = Tally()
    play_and_compare("debate", make_env(**SETTINGS["debate"]), 24, 70, 6, tally)
    assert_happened(tally, ("tool", "message"), ("message", "peers"), ("tool", "spawn"), ("role", 1), "listens")
    assert not tally.seen["role", 2] and not tally.seen["role", 3]


@pytest.mark.slow
def test_engine_and_twin_agree_in_500_episodes():
    tally = Tally()
    for name, episodes in SLOW.items():
        env = make_env(**SETTINGS[name])
        play_and_compare(name, env, episodes, env.spec.max_ticks + 2, 11, tally)
    assert_happened(tally, *SEEN, ("end_reason", DESPAWNED), ("tool", "spawn"), ("result_code", 6))
    assert_happened(tally, ("stop_reason", BUDGET), ("stop_reason", HORIZON), "info.success", "info.refused_claims")
    assert tally.episodes >= 500
