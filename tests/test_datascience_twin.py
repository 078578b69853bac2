"""DataScience-v0 against its slow twin in plain Python (tests/twin/datascience.py), step by step on the same turns."""

from typing import Any

import pytest
from twin.compare import Tally, assert_happened, play_and_compare
from twin.engine import BUDGET, DESPAWNED, HORIZON, STOPPED, WITH_EPISODE

from ddpomdp_envs.datascience_env import make_env

SETTINGS: dict[str, dict[str, Any]] = {
    "crew": {"max_ticks": 120, "capacity": 5, "num_subtasks": 2, "turn_cap": 8, "claims_per_row": 16}
    | {"reward": "tool", "wait_limit_ms": 60_000, "lead_blocks": False, "model": "randomised"},
    "swarm": {"topology": "swarm", "capacity": 7, "max_ticks": 90, "reward": "hybrid", "claims_per_row": 16}
    | {"model": "gpt-4", "lead_blocks": False, "turn_cap": 12, "context_limit": 9_000},
    "single": {"topology": "single", "max_ticks": 64, "capacity": 4, "max_turns": 30, "model": "gpt-4o"},
    "small": {"topology": "swarm", "max_ticks": 100, "max_tokens": 30_000},
    "tiny": {"preset": "tiny"},
    "managed": {"topology": "managed", "capacity": 6, "max_ticks": 90, "lead_blocks": False},
    "centralized": {"topology": "centralized", "capacity": 6, "max_ticks": 90, "lead_blocks": False, "model": "gpt-4o"},
    "planted": {"preset": "calibration", "planted": True, "model": "gpt-3.5"},
}
SLOW = {
    "crew": 110,
    "swarm": 110,
    "single": 90,
    "small": 80,
    "tiny": 60,
    "planted": 60,
    "managed": 60,
    "centralized": 60,
}
SEEN = (
    *(("tool", tool) for tool in ("wait", "delegate", "message", "return", "aggregate", "stop")),
    *(("tool", tool) for tool in ("write_features", "train_model", "tune", "check_artifacts", "submit")),
    *(("result_code", code) for code in (1, 3, 4, 5, 6, 7, 8)),
    *(("aggregate", rule) for rule in ("last", "best", "verdict")),
    *(("delegate", rows) for rows in ("next", "missing", "conflicting", "again")),
    *(("delegate", brief) for brief in ("short", "standard", "detailed")),
    *(("message", words) for words in ("all", "new", "best", "disputed", "list", "short", "standard", "full")),
    *(("return", words) for words in ("all", "new", "best", "disputed", "list", "short", "standard", "full")),
    *(("role", role) for role in range(4)),
    *(f"info.{name}" for name in ("quality", "success", "submitted", "illegal", "empty_selections")),
    ("end_reason", WITH_EPISODE),
    ("stop_reason", STOPPED),
    *((channel, sign) for channel in ("role", "debate", "tool") for sign in "+-"),
)


def test_engine_and_twin_agree():
    tally = Tally()
    play_and_compare("crew", make_env(**SETTINGS["crew"]), 60, 60, 5, tally)
    assert_happened(tally, *SEEN)
    assert tally.episodes >= 60 and tally.ticks > 1_500


@pytest.mark.slow
def test_engine_and_twin_agree_in_500_episodes():
    tally = Tally()
    for name, episodes in SLOW.items():
        env = make_env(**SETTINGS[name])
        play_and_compare(name, env, episodes, env.spec.max_ticks + 2, 11, tally)
    assert_happened(tally, *SEEN, ("end_reason", DESPAWNED), ("tool", "spawn"), ("result_code", 9))
    assert_happened(tally, ("stop_reason", BUDGET), ("stop_reason", HORIZON), "info.refused_claims")
    assert tally.episodes >= 500
