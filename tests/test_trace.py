"""Traces: written, read, replayed, measured. Numbers of the metrics are worked by hand.

Axis letters: T tick, N slot.
"""

import copy
import json
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import trace_episodes as episodes

import ddpomdp
from ddpomdp import cli
from ddpomdp.critical_path import timeline
from ddpomdp.enums import Decision, EventKind, Group, LifeEnd, ResultCode
from ddpomdp.trace import (
    Difference,
    Trace,
    TraceError,
    measures,
    metrics,
    plot,
    records,
    replay,
    replaying,
    schema,
    to_networkx,
    to_perfetto,
    validate,
)
from ddpomdp.trace import document as document_
from ddpomdp.trace import head as head_

SHARED = Path(__file__).parents[2] / "shared" / "data"
RANDOM_SEEDS = (0, 1, 2, 3, 4, 5)  # odd ones with turns that no harness allows
SCRIPTED_SEED = 18  # poisoned rows, and a message with a claim


def shared(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}: the survey's schema is its authors' file, checked against where a copy lies beside us")
    return json.loads(path.read_text("utf-8"))


def scripted():
    return episodes.scripted_episode(SCRIPTED_SEED)


@cache
def every_episode():
    return [
        *(episodes.random_episode(seed, garbled=seed % 2 == 1) for seed in RANDOM_SEEDS),
        episodes.random_episode(2, most=9),  # cut before its end
        scripted(),
    ]


def test_the_episodes_hold_what_the_tests_are_about():
    types = {event["type"] for e in every_episode() for event in e.trace.events}
    expected = {"orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return"}
    assert types == expected | {"aggregate", "safety_event"}
    decisions = {event.get("decision") for e in every_episode() for event in e.trace.events}
    assert decisions == {None, "reset", "wait", "delegate", "stop"}
    edges = {edge["type"] for e in every_episode() for edge in e.trace.edges}
    assert edges == set(document_.EDGE_TYPES)
    reasons = {e.trace.head["stop_reason"] for e in every_episode()}
    assert {"stopped", "running"} <= reasons
    assert any(not e.events.valid[e.events.uid >= 0].all() for e in every_episode())


def test_records_keep_every_bit():
    for e in every_episode():
        rows, waits = records.encode(e.events)
        shape = e.events.uid.shape
        told = [((), row) for row in rows]
        num_args = e.events.tokens.shape[-1] - 1
        back, faults = records.decode(*shape, num_args, list(e.events.channels), told, [((), w) for w in waits])
        assert not faults and not list(records.differences(e.events, back))
        for (path, was), now in zip(jax.tree_util.tree_leaves_with_path(e.events), jax.tree.leaves(back), strict=True):
            np.testing.assert_array_equal(was, now, err_msg=jax.tree_util.keystr(path))
            assert was.dtype == now.dtype, path
        forced = (e.events.uid >= 0).sum() - len(rows)
        assert forced == sum(wait["ticks"][1] - wait["ticks"][0] + 1 for wait in waits)
    assert 1 < len(waits) < forced


def test_export_import_export_is_byte_equal():
    for e in every_episode():
        text = e.trace.to_json()
        back = Trace.from_json(text)
        assert back.to_json().encode() == text.encode()
        assert validate(text) == []
        assert back.document == e.trace.document
        assert not list(records.differences(e.events, back.arrays))


def test_order_does_not_matter_and_free_fields_stay():
    e = scripted()
    text = e.trace.to_json()
    for seed in range(20):
        document = json.loads(text)
        rng = random.Random(seed)
        rng.shuffle(document["events"])
        rng.shuffle(document["edges"])
        back = Trace.from_json(json.dumps(document))
        assert back.to_json() == text and back.fingerprint == e.trace.fingerprint
    document["events"][3]["note"] = "\U0001f600 é \u202e \u2028 \x00 " + "x" * 100_000
    noted = Trace.from_json(json.dumps(document))
    assert noted.fingerprint != e.trace.fingerprint
    assert Trace.from_json(noted.to_json()).to_json() == noted.to_json()


def test_exports_are_valid_under_our_schema_and_the_survey_s():
    jsonschema = pytest.importorskip("jsonschema")
    ours = jsonschema.Draft202012Validator(schema.schema())
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    for e in every_episode():
        ours.validate(json.loads(e.trace.to_json()))
    theirs = jsonschema.Draft202012Validator(shared("trace_schema.json"))
    for e in every_episode():
        theirs.validate(json.loads(e.trace.to_json()))


def test_our_vocabulary_is_the_survey_s():
    theirs, ours = shared("trace_schema.json"), schema.schema()["$defs"]
    assert ours["event_type"]["enum"] == theirs["$defs"]["event"]["properties"]["type"]["enum"]
    assert ours["edge"]["properties"]["type"]["enum"] == theirs["$defs"]["edge"]["properties"]["type"]["enum"]
    assert ours["topology"]["enum"] == theirs["properties"]["topology"]["enum"]
    assert ours["any_trace"]["required"] == theirs["required"]
    assert set(ours["any_trace"]["properties"]) == set(theirs["properties"])
    assert set(document_.TOPOLOGIES.values()) <= set(ours["topology"]["enum"])


def test_edges_lead_forward_from_one_root():
    for e in every_episode():
        place = {event["id"]: i for i, event in enumerate(e.trace.events)}
        assert len(place) == len(e.trace.events)
        assert all(place[edge["src"]] < place[edge["dst"]] for edge in e.trace.edges)
        times = [event["t"] for event in e.trace.events]
        assert times == sorted(times)
        led_to = {edge["dst"] for edge in e.trace.edges}
        assert set(place) - led_to == {"e0"}
        calls = [event for event in e.trace.events if event["type"] == "tool_call"]
        results = [edge["dst"] for edge in e.trace.edges if edge["type"] == "tool_dependency"]
        assert results == [f"{call['id']}r" for call in sorted(calls, key=lambda call: place[f"{call['id']}r"])]


def test_forced_waits_are_not_events_and_chosen_ones_are():
    for e in every_episode():
        ev = e.events
        here = ev.uid >= 0
        written = here & ((ev.kind != EventKind.WAIT) | ev.is_decision | ~ev.valid)
        results = [event for event in e.trace.events if event["type"] == "tool_result"]
        assert len(e.trace.events) == 1 + written.sum() + len(results)
        for event in e.trace.events[1:]:
            record = event["ddpomdp"]
            if "of" not in record:
                row, slot = record["tick"] - 1, record["slot"]
                assert event["t"] == ev.clock_ms[row, slot] / 1000 and record["clock_ms"] == ev.clock_ms[row, slot]
                assert record["tokens"] == ev.tokens[row, slot].tolist()
                assert (event["type"] == "safety_event") == (not ev.valid[row, slot])


def test_totals_are_those_of_the_environment():
    for e in every_episode():
        costs, info, rewards = e.trace.costs, e.last.info, e.trace.rewards
        for name in ("tokens", "tokens_task", "tokens_orchestration", "tokens_message", "tokens_tool"):
            assert costs[name] == info[name].item()
        assert costs["turns"] == info["turns"] and costs["decisions"] == info["decisions"]
        assert costs["serial_s"] == pytest.approx(info["serial_s"].item(), rel=1e-6)
        assert costs["wall_clock_s"] == pytest.approx(info["wall_s"].item(), rel=1e-6)
        if e.trace.head["stop_reason"] != "running":
            assert costs["sub_agents"] == info["births"]
            assert rewards["team"] == pytest.approx(float(e.last.team_return))
        assert set(rewards) == set(e.events.channels)
        for name, values in e.events.channels.items():
            assert name == "team" or rewards[name] == pytest.approx(values.sum(dtype=np.float64), abs=1e-9)


def test_who_is_born_and_whom_a_call_addresses():
    e = scripted()
    by_type = {kind: [x for x in e.trace.events if x["type"] == kind] for kind in ("spawn", "message", "despawn")}
    (spawn,) = by_type["spawn"]
    assert spawn["ddpomdp"]["born"] == ["searcher_1", "searcher_2"] and "to" not in spawn
    assert spawn["ddpomdp"]["call"]["args"]["count"] == 2
    assert [(m["from"], m["to"]) for m in by_type["message"]] == [("lead", "children"), ("searcher_1", "lead")]
    (gone,) = by_type["despawn"]
    assert gone["to"] == "searcher_1" and gone["ddpomdp"]["call"]["args"] == {"who": "searcher_1"}
    assert e.trace.events[-1]["decision"] == "stop"
    assert e.trace.document["topology"] == "swarm" and e.trace.document["task_id"] == "Search-v0/00000000-00000012"


# Replay --------------------------------------------------------------------------------------------------------------


def test_replay_is_equal():
    for e in every_episode():
        back = Trace.from_json(e.trace.to_json())
        assert replaying.verify(back, episodes.env()) == len(e.events.uid)


def test_replay_on_the_command_line(monkeypatch, tmp_path, capsys):
    trace = scripted().trace
    made, _ = head_.environment(trace.head)
    assert made.harness.digest == episodes.env().harness.digest and made is not episodes.env()
    monkeypatch.setattr(head_, "make", lambda name, **options: episodes.env())  # compiled already
    trace.save(tmp_path / "t.json")
    assert cli.main(["trace", "replay", str(tmp_path / "t.json"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"ok": True, "ticks": trace.head["ticks"], "rewards": trace.rewards}
    altered(lambda trace: trace.head["info"].update(quality=7.0)).save(tmp_path / "t.json")
    assert cli.main(["trace", "replay", str(tmp_path / "t.json")]) == 1
    found = trace.head["info"]["quality"]
    assert capsys.readouterr().err == f"ddpomdp: the episode: info.quality was recorded as 7.0, replayed as {found}\n"
    altered(lambda trace: trace.head.update(env_version="9")).save(tmp_path / "t.json")
    assert cli.main(["trace", "replay", str(tmp_path / "t.json")]) == 2
    assert "env_version: '9' -> " in capsys.readouterr().err


def test_replay_returns_the_rollout_and_its_trace_is_the_same():
    e = scripted()
    rollout = replay(Trace.from_json(e.trace.to_json()), episodes.env())
    assert not list(records.differences(e.events, jax.tree.map(np.asarray, rollout.next_ts.events)))
    assert bool(rollout.next_ts.last[-1]) and rollout.ts.uid.shape == e.events.uid.shape
    again = Trace.from_rollout(episodes.env(), rollout, e.key, e.luck, policy="script", env_params=None)
    late = again.head.pop("late_reward")
    assert again.document == e.trace.document
    assert set(late) <= {"1", "2"}


def altered(change):
    """The scripted episode's trace with one field of its records changed, and the rest written to agree with it."""
    trace = copy.deepcopy(scripted().trace)
    change(trace)
    head = {name: value for name, value in trace.head.items() if name != "waits"}
    arrays = trace.arrays
    again = document_.document(head, head_.harness(head), arrays, *records.encode(arrays))
    return Trace.from_json(json.dumps(again))


def test_the_first_difference_is_named():
    def latency(trace):
        record = trace.events[-1]["ddpomdp"]
        assert trace.events[-1]["decision"] == "stop"
        record["latency_ms"] += 1
        trace.head["wall_ms"] += 1

    changed = altered(latency)
    record = changed.events[-1]["ddpomdp"]
    with pytest.raises(Difference, match=r"tick \d+, slot 0: latency_ms was recorded as \d+, replayed as") as error:
        replaying.verify(changed, episodes.env())
    assert (error.value.tick, error.value.slot) == (record["tick"], 0)
    assert error.value.recorded == error.value.replayed + 1

    def channel(trace):
        trace.events[-1]["ddpomdp"]["channels"]["team"] *= 1 + 1e-6

    with pytest.raises(Difference, match=r"channels\.team"):
        replaying.verify(altered(channel), episodes.env())
    with pytest.raises(Difference, match=r"the episode: info\.quality was recorded as 7"):
        replaying.verify(altered(lambda trace: trace.head["info"].update(quality=7.0)), episodes.env())
    with pytest.raises(Difference, match=r"the episode: stop_reason was recorded as .budget"):
        replaying.verify(altered(lambda trace: trace.head.update(stop_reason="budget")), episodes.env())


def test_elsewhere_floats_may_differ_a_little_and_integers_not():
    def other_device(trace):
        trace.head["jax"] = "0.0.1"
        trace.events[-1]["ddpomdp"]["channels"]["team"] *= 1 + 1e-6

    replaying.verify(altered(other_device), episodes.env())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env_version": "9.9.9"}, r"another environment .*env_version: '9\.9\.9' -> "),
        ({"env": "Serch-v0"}, r"ddpomdp\.env: cannot make 'Serch-v0': unknown environment .*did you mean Search-v0"),
        ({"env": "os:system"}, r"cannot make 'os:system': unknown environment"),
        ({"env": "../Search-v0\n\x1b[31m"}, r"unknown environment"),
        ({"options": {"preset": "tiny"}}, r"another environment .*(options\.\w+: absent -> )"),
        ({"options": {"preset": "tiny", "capacity": 10**6}}, r"cannot make 'Search-v0': capacity"),
        ({"options": {"preset": "tiny", "reward": {"weigths": 1}}}, r"cannot make 'Search-v0'"),
        ({"params": {"no.such": 3}}, r"ddpomdp\.params: this environment has no number 'no\.such'"),
        ({"params": {"price_token": [1, 2]}}, r"price_token has shape \(2,\)"),
        ({"params": {"price_token": "dear"}}, r"ddpomdp\.params: price_token"),
        ({"slots": 7}, r"ddpomdp\.slots: got 7; this environment has 6"),
        ({"key": {"impl": "threefry2x33", "words": [0, 0]}}, r"ddpomdp\.key: not a key of JAX"),
        ({"luck": {"impl": "threefry2x32", "words": [0, 0, 0]}}, r"ddpomdp\.key: not a key of JAX"),
    ],
)
def test_what_is_foreign_is_refused_with_what_differs(change, said):
    trace = altered(lambda trace: trace.head.update(change))
    mine = not {"env", "options"} & set(change)
    with pytest.raises(TraceError, match=said) as error:
        replaying.verify(trace, episodes.env() if mine else None)
    assert "\n" not in str(error.value).replace("\\n", "")


def test_another_harness_is_refused_with_the_differences():
    other = ddpomdp.make("Search-v0", **{**episodes.play.SHAPES["swarm"], "counts": (1, 2)})
    with pytest.raises(TraceError, match=r"harness\.digest: '[0-9a-f]{16}' -> '[0-9a-f]{16}'") as error:
        replaying.verify(every_episode()[0].trace, other)
    assert "options.counts.2: 4 -> absent" in str(error.value)


def test_changed_numbers_and_weights_are_recorded():
    env = episodes.env()
    params = ddpomdp.pytree.replace(
        env.params,
        price_second=env.params.price_second * 2,
        weights={**env.params.weights, "tool": env.params.weights["tool"] + 0.5},
    )
    e = every_episode()[0]
    head = Trace.from_events(env, e.events, e.key, env_params=params).head
    assert head["params"] == {"price_second": pytest.approx(2e-4)} and head["weights"]["tool"] == 0.5
    _, back = head_.environment(head, env)
    for was, now in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(was, now)


def test_what_is_not_one_episode_is_refused():
    e = every_episode()[0]
    env = episodes.env()
    batch = SimpleNamespace(next_ts=SimpleNamespace(last=np.zeros((3, 4), bool)))
    with pytest.raises(ValueError, match=r"one episode, \[T\]"):
        Trace.from_rollout(env, batch, e.key)
    late = jax.tree.map(lambda x: x[2:], e.events)
    with pytest.raises(ValueError, match="do not begin with the first tick"):
        Trace.from_events(env, late, e.key)
    with pytest.raises(ValueError, match="one episode, which has one key"):
        Trace.from_events(env, e.events, jax.random.split(e.key))
    broken = copy.deepcopy(e.events)
    broken.channels["tool"] = np.full_like(broken.channels["tool"], np.nan)
    with pytest.raises(ValueError, match="channel tool holds nan"):
        Trace.from_events(env, broken, e.key)


# Metrics -------------------------------------------------------------------------------------------------------------


@cache
def by_hand(news=1):
    """Three agents, six ticks, times in ms: every number below can be added up in the head.

    lead       spawn 0-1000       wait (all) 1000-4000                              aggregate 4000-5000   stop 5000-5500
    searcher_1                    search 1000-3000 (poisoned), tells the lead 3000-3500, returns a claim 3500-4000
    searcher_2                    search 1000-2000 (fault), returns nothing 2000-2500
    """
    harness = episodes.env().harness
    lead = {"uid": 0, "slot": 0, "role": 0}
    one, two = ({"uid": u, "slot": u, "role": 1, "parent_uid": 0} for u in (1, 2))
    bad = {"trusted": False, "tainted": True}
    wait_for_all = harness.turn("wait", **{"for": "all"}).tolist()

    def call(life, tick, kind, start, latency, tool=None, **fields):
        spoken = harness.turn(tool or kind).tolist()
        common = {"tick": tick, "kind": kind, "tokens": spoken, "legal_count": 5, "clock_ms": start}
        return life | common | {"latency_ms": latency} | fields

    rows = [
        call(lead, 1, "spawn", 0, 1000, decision="spawn", cost_tokens={"orchestration": 100}),
        call(lead, 2, "wait", 1000, 0, tokens=wait_for_all, decision="communicate"),
        call(one, 2, "tool", 1000, 2000, "search", result_code="found", cost_tokens={"tool": 250})
        | {"channels": {"tool": 0.01}}
        | bad,
        call(two, 2, "tool", 1000, 1000, "search", result_code="fault", cost_tokens={"tool": 250}),
        call(one, 3, "message", 3000, 500, claims_sent=1, target_group="parent", cost_tokens={"message": 30}),
        call(two, 3, "return", 2000, 500, cost_tokens={"message": 20}),
        call(one, 4, "return", 3500, 500, claims_sent=1, cost_tokens={"message": 20}),
        call(lead, 5, "aggregate", 4000, 1000, claims_received=1, cost_tokens={"orchestration": 50}) | bad,
        call(lead, 6, "stop", 5000, 500, decision="stop", end_reason="episode")
        | {"channels": {"team": 0.5, "orchestration_aggregation": 0.25}},
    ]
    wait = {"clock_ms": 1000, **lead}
    heard = {"claims_received": news} | bad if news else {}
    idle = [{**life, "ticks": [first, 6], "clock_ms": at} for life, first, at in ((one, 5, 4000), (two, 4, 2500))]
    runs = [{**wait, "ticks": [3, 3]}, {**wait, **heard, "ticks": [4, 4]}, *idle]
    channels = list(episodes.env().params.weights)
    events, faults = records.decode(
        6, 3, harness.num_args, channels, [((), row) for row in rows], [((), run) for run in runs]
    )
    assert not faults
    info = {"success": np.float32(1), "quality": np.float32(0.75), "critical_steps": np.float32(2.5)}
    return Trace.from_events(episodes.env(), events, jax.random.key(0), stop_reason="stopped", info=info)


def test_metrics_by_hand():
    trace = by_hand()
    found = metrics(Trace.from_json(trace.to_json()))
    expected = {
        "task_success": 1.0,
        "parallelism_efficiency": (1000 + 2000 + 1000 + 500 + 500 + 500 + 1000 + 500) / 5500,
        "useful_agent_utilisation": 2 / 5,  # one search, one return; of 2 searches, 1 message, 2 returns
        "critical_steps": 2.5,
        "message_redundancy": 0.0,
        "unread_returns": 0.0,
        "consensus_quality": 0.25,
        "protocol_overhead": (100 + 50 + 30 + 20 + 20 + 250) / 720,
        "tokens_per_delegation": 100 / 2,
        "error_amplification": 1 / 1,  # one poisoned result; it reached the aggregate
        "injection_flow": 1 / 3,
    }
    assert {name: measure.value for name, measure in found.items()} == pytest.approx(expected)
    assert {m.source for m in found.values()} == {"computed"}
    assert measures.layers(found) == ["E1", "E2", "E3", "E4"]
    operational = [name for name, measure in found.items() if measure.operational]
    assert len(operational) == 5
    assert trace.document["metrics"].items() >= expected.items() - {("critical_steps", 2.5)}
    assert trace.costs["serial_s"] == 7.0 and trace.costs["wall_clock_s"] == 5.5
    assert trace.rewards["team"] == 0.5 and trace.rewards["tool"] == pytest.approx(0.01)
    assert validate(trace.to_json()) == []
    edges = {(edge["src"], edge["dst"], edge["type"]) for edge in trace.edges}
    assert edges == {
        ("e0", "t1u0", "causal"),
        ("t1u0", "t2u0", "temporal"),
        ("t2u0", "t5u0", "temporal"),
        ("t5u0", "t6u0", "temporal"),
        ("t2u1", "t2u1r", "tool_dependency"),
        ("t2u1r", "t3u1", "temporal"),
        ("t3u1", "t4u1", "temporal"),
        ("t2u2", "t2u2r", "tool_dependency"),
        ("t2u2r", "t3u2", "temporal"),
        ("t1u0", "t2u1", "spawn"),
        ("t1u0", "t2u2", "spawn"),
        ("t3u1", "t5u0", "message"),
        ("t3u2", "t5u0", "return"),
        ("t4u1", "t5u0", "return"),
        ("t3u2", "t5u0", "aggregate"),
        ("t4u1", "t5u0", "aggregate"),
        ("t3u1", "t5u0", "safety_flow"),
        ("t4u1", "t5u0", "safety_flow"),
    }


def test_a_message_without_news_is_redundant():
    found = metrics(by_hand(news=0))
    assert found["message_redundancy"].value == 1.0
    assert ("t3u1", "t5u0", "safety_flow") not in {tuple(edge.values()) for edge in by_hand(news=0).edges}


def test_scale_by_hand():
    scale = measures.scale(by_hand())
    assert (scale["events"], scale["agents"], scale["sub_agents"], scale["messages"]) == (11, 3, 2, 1)
    assert (scale["tool_calls"], scale["wall_clock_s"], scale["tokens"]) == (2, 5.5, 720)
    assert (scale["roles"], scale["population"]) == (["lead", "searcher"], "dynamic")
    assert scale["reward_channels"] == ["team", "tool", "orchestration_aggregation"]
    assert (scale["untrusted_tool_results"], scale["safety_events"]) == (1, 0)


def foreign(**changes):
    """A trace of another system: a boss, two workers, a browser whose page is not to be trusted."""
    said = [
        ("a", 0, "orchestrator_decision", "boss", {}),
        ("b", 1, "spawn", "boss", {"to": "w1"}),
        ("c", 1.5, "spawn", "boss", {"to": "w2"}),
        ("d", 2, "tool_call", "w1", {"tool": "browser"}),
        ("e", 5, "tool_result", "browser", {"tool": "browser", "trusted": False}),
        ("f", 6, "message", "w1", {"to": "w2", "content_ref": "x"}),
        ("g", 7, "message", "w1", {"to": "w2", "content_ref": "x"}),
        ("h", 8, "message", "w2", {"to": "w1", "content_ref": "x"}),
        ("i", 9, "return", "w2", {"to": "boss"}),
        ("j", 9.5, "return", "w1", {"to": "boss"}),
        ("k", 10, "aggregate", "boss", {}),
    ]
    edges = ["ab spawn", "ac spawn", "bd causal", "de tool_dependency", "ef safety_flow", "fh safety_flow"]
    edges += ["ik aggregate", "fh message"]
    document = {
        "trace_id": "x",
        "task_id": "y",
        "events": [{"id": i, "t": t, "type": k, "agent": a, **more} for i, t, k, a, more in said],
        "edges": [{"src": e[0], "dst": e[1], "type": e[3:]} for e in edges],
        "rewards": {"team": 1},
        "costs": {"tokens": 1000, "wall_clock_s": 10},
    }
    return document | changes


def test_metrics_of_another_system_by_hand():
    found = metrics(Trace.from_json(json.dumps(foreign())))
    values = {name: measure.value for name, measure in found.items() if measure.value is not None}
    assert values == pytest.approx(
        {
            "useful_agent_utilisation": 3 / 6,  # a tool call and two returns; three messages
            "message_redundancy": 1 / 3,
            "unread_returns": 1 / 2,
            "error_amplification": 2 / 1,
            "injection_flow": 2 / 3,
        }
    )
    assert found["parallelism_efficiency"].reason == "events have no durations, and costs no serial_s"
    assert all(bool(m.reason) == (m.value is None) for m in found.values())
    assert measures.layers(found) == ["E2", "E3", "E4"]
    more = foreign(
        costs={"tokens": 1000, "wall_clock_s": 10, "serial_s": 25, "tokens_orchestration": 100, "tokens_message": 50},
        metrics={"task_success": 1, "tokens_per_delegation": 7},
    )
    found = metrics(Trace.from_json(json.dumps(more)))
    assert found["parallelism_efficiency"].value == 2.5 and found["protocol_overhead"].value == 0.15
    assert (found["tokens_per_delegation"].value, found["tokens_per_delegation"].source) == (7.0, "stated")


def test_the_survey_s_example():
    example = shared("example_trace.json")
    text = json.dumps(example)
    assert validate(text) == []
    trace = Trace.from_json(text)
    assert trace.head is None
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert json.loads(trace.to_json()) == example
    values = {name: m.value for name, m in metrics(trace).items()}
    assert values["task_success"] == 1 and values["useful_agent_utilisation"] == pytest.approx(2 / 3)
    assert values["protocol_overhead"] == 0.18 and values["message_redundancy"] == 0
    assert values["unread_returns"] == 0 and values["parallelism_efficiency"] is None
    with pytest.raises(TraceError, match="not written by ddpomdp"):
        replay(trace)
    assert plot(trace).startswith(b"\x89PNG")
    to_perfetto(trace)


# Other formats -------------------------------------------------------------------------------------------------------


def test_networkx():
    networkx = pytest.importorskip("networkx")
    for e in every_episode():
        graph = to_networkx(e.trace)
        assert graph.number_of_nodes() == len(e.trace.events) and graph.number_of_edges() == len(e.trace.edges)
        assert networkx.is_directed_acyclic_graph(graph)
        assert set(networkx.descendants(graph, "e0")) == set(graph) - {"e0"}
        assert "".join(networkx.generate_graphml(graph))


def test_perfetto():
    for trace in (*(e.trace for e in every_episode()), Trace.from_json(json.dumps(foreign()))):
        events = json.loads(to_perfetto(trace))["traceEvents"]
        names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
        assert names == list(dict.fromkeys(event["agent"] for event in trace.events))
        slices = [e for e in events if e["ph"] == "X"]
        assert len(slices) == sum(event["type"] != "tool_result" for event in trace.events)
        starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
        crossing = [edge for edge in trace.edges if edge["type"] == "message"]
        assert starts.keys() == ends.keys() and len(starts) >= len(crossing)
        for flow in (*starts.values(), *ends.values()):
            inside = [s for s in slices if s["tid"] == flow["tid"] and 0 <= flow["ts"] - s["ts"] < s["dur"]]
            assert inside, flow
        assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
    lanes = {}
    for piece in slices if trace.head else ():
        lanes.setdefault(piece["tid"], []).append((piece["ts"], piece["ts"] + piece["dur"]))
    for spans in lanes.values():
        assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_plot_is_the_picture_of_the_events(tmp_path):
    pytest.importorskip("matplotlib")
    trace = Trace.from_json(by_hand().to_json())
    png = plot(trace, tmp_path / "a.png", title="by hand")
    assert png == (tmp_path / "a.png").read_bytes() and png.startswith(b"\x89PNG")
    assert timeline(trace.arrays).wall_ms == 5500


def test_enumerations_are_written_as_words():
    fields = schema.schema()["$defs"]["record"]["properties"]
    words = {name: rule["enum"] for name, rule in fields.items() if "enum" in rule}
    for name, kind in (
        ("kind", EventKind),
        ("decision", Decision),
        ("target_group", Group),
        ("result_code", ResultCode),
        ("end_reason", LifeEnd),
    ):
        assert words[name] == [member.name.lower() for member in kind]
