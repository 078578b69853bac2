"""The command line against the real engine: an episode played and drawn, and bad calls refused in one line."""

import json
import re
import struct

import jax
import numpy as np
import pytest

import ddpomdp
from ddpomdp import cli, trace
from ddpomdp.bench import episode


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPOMDP_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("play", "Serch-v0"), ("unknown environment 'Serch-v0'", "did you mean Search-v0?", "allowed: ")),
        (("play", "Search-v0", "num_subtask=3"), ("'num_subtask'", "did you mean num_subtasks?", "allowed: ")),
        (("play", "Search-v0", "num_subtasks=0"), ("num_subtasks: got 0", "1 to 8192")),
        (("play", "Search-v0", "num_subtasks=many"), ("num_subtasks: got 'many'",)),
        (("play", "Search-v0", "counts=3"), ("counts: got 3", "distinct values of 1..4096")),
        (("play", "Search-v0", "frozen_roles=2"), ("frozen_roles: got 2", "searcher, checker")),
        (("play", "Search-v0", "poison=2"), ("poison: got 2", "0 to 1")),
        (("play", "Search-v0", "a.b=2"), ("unknown option of Search-v0 'a'",)),
        (("play", "Search-v0", "--preset", "smal"), ("unknown preset 'smal'", "did you mean small?", "k2.6")),
        (("play", "Search-v0", "topology=swam"), ("unknown topology 'swam'", "did you mean swarm?", "hierarchical")),
        (("play", "Search-v0", "model=stong"), ("unknown model 'stong'", "did you mean strong?", "allowed: ")),
        (("play", "Search-v0", "model=[1]"), ("unknown model '[1]'",)),
        (("play", "Search-v0", "reward=outcom"), ("unknown reward 'outcom'", "did you mean outcome?")),
        (("play", "Search-v0", "--policy", "swam"), ("policy of Search-v0 'swam'", "did you mean swarm?", "single")),
        (("play", "Search-v0", "--policy", "swarm", "topology=single"), ("needs a topology with spawning",)),
        (
            ("play", "Search-v0", "--policy", "swarm", "policy.m=2"),
            ("option of policy swarm 'm'", "allowed: as_they_come, brief"),
        ),
        (("play", "Search-v0", "--policy", "swarm", "policy.n=99"), ("n: got 99", "1 to 15")),
        (("play", "Search-v0", "policy=swarm"), ("named by --policy",)),
        (("bench", "quik"), ("unknown suite 'quik'", "did you mean quick?")),
        (("bench", "quick", "policies=swam"), ("unknown policy 'swam'", "allowed: base")),
        (("bench", "quick", "models=stong"), ("unknown model 'stong'", "did you mean strong?")),
        (("bench", "quick", "preset=smal"), ("unknown preset 'smal'",)),
        (("bench", "calibration", "episodes=0"), ("episodes: got 0",)),
    ],
)
def test_bad_calls_are_one_line_and_code_2(capsys, tmp_path, words, parts):
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("ddpomdp: ")) == ("", 1, True)
    assert [part for part in parts if part not in err] == []
    assert not any(tmp_path.rglob("*.json*"))


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("swarm", {"m": 4}, ("unknown option of policy swarm 'm'", "allowed: as_they_come, brief, chunk, lead_rows")),
        ("random", {"n": 4}, ("unknown option of policy random 'n'", "allowed: none")),
        ("swarm", {"n": 100}, ("n: got 100", "1 to 15")),
        ("swarm", {"brief": "long"}, ("unknown brief 'long'", "standard")),
    ],
)
def test_policy_refuses_unknown_options(name, options, parts):
    env = ddpomdp.make("Search-v0")
    with pytest.raises(ValueError) as error:
        ddpomdp.policy(name, env, **options)
    assert [part for part in parts if part not in str(error.value)] == []


def test_play_prints_the_episode_that_rollout_gives(capsys, tmp_path):
    """`play` and `rollout` are the same episode; the picture is a PNG."""
    words = ["play", "Search-v0", "--preset", "tiny", "--seed", "0", "--policy", "random"]
    assert cli.main([*words, "--json", "--plot", "trace.png", "--save", "trace.json"]) == 0
    row = json.loads(capsys.readouterr().out)
    data = (tmp_path / "trace.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24])[0] == 1440

    env = ddpomdp.make("Search-v0", preset="tiny")
    policy = ddpomdp.policy("random", env)
    key = jax.random.key(0)
    rolled = jax.jit(lambda key: ddpomdp.rollout(env, policy, policy.init(env), key, env.spec.max_ticks))(key)
    ts = rolled.next_ts
    ticks = int(np.argmax(ts.last)) + 1
    assert row["ticks"] == ticks
    assert row["quality"] == pytest.approx(float(ts.info["quality"][-1]))
    assert row["tokens"] == int(ts.info["tokens"][-1])
    assert row["wall_s"] == pytest.approx(float(ts.info["wall_s"][-1]))
    reward = float(np.where(np.asarray(ts.events.uid) == 0, ts.reward, 0).sum())
    assert row["reward"] == pytest.approx(reward, abs=1e-6)
    assert row["stop_reason"] == ddpomdp.StopReason(int(ts.stop_reason[-1])).name.lower()
    assert sum(row["calls"].values()) == int((ts.events.valid & ((ts.events.kind != 0) | ts.events.is_decision)).sum())

    played = episode.play(env, policy, policy.init(env), key[None], env.params, env.spec.max_ticks)

    def same(ours, theirs):
        """Two programs of one episode: whole numbers are equal, floats up to how a program rounds."""
        exact = not np.issubdtype(ours.dtype, np.floating)
        np.testing.assert_allclose(ours, np.asarray(theirs)[:ticks], rtol=0 if exact else 1e-6, atol=0)

    jax.tree.map(same, episode.first_events(played), ts.events)

    # The trace that was saved is that of the rollout, but for what only a rollout knows.
    saved = trace.Trace.load(tmp_path / "trace.json")
    ours = trace.Trace.from_rollout(env, rolled, key, policy="random")
    assert "late_reward" not in saved.head and ours.head.pop("late_reward") is not None
    rounded = lambda text: re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda x: f"{float(x[0]):.6g}", text)  # noqa: E731
    assert rounded(saved.to_json()) == rounded(ours.to_json())
    assert cli.main(["trace", "validate", "trace.json"]) == 0
    assert cli.main(["trace", "metrics", "trace.json", "--json"]) == 0
    assert cli.main(["trace", "plot", "trace.json", "--out", "again.png"]) == 0
    assert cli.main(["trace", "export", "trace.json", "--to", "graphml", "--out", "trace.graphml"]) == 0
    assert cli.main(["trace", "export", "trace.json", "--out", "trace.perfetto.json"]) == 0
    assert (tmp_path / "again.png").read_bytes()[:8] == data[:8]
    assert json.loads((tmp_path / "trace.perfetto.json").read_text())["traceEvents"]
    capsys.readouterr()

    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("Search-v0, random, seed 0", "quality", "tokens", row["stop_reason"]))
