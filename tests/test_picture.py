"""The picture of a trace, and the calls, edges and critical path it is drawn from."""

import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic_trace import (
    AGGREGATE,
    DELEGATE,
    DESPAWN,
    MESSAGE,
    RETURN,
    SPAWN,
    STOP,
    TOOL,
    WAIT,
    Script,
    dense,
    swarm,
)

from ddpomdp import picture
from ddpomdp.critical_path import timeline
from ddpomdp.enums import EventKind

ROLES = ("lead", "searcher")


def four_lives():
    """A lead, two searchers born together, one born later; times in ms, rows by causality."""
    script = Script()
    script.born(0, 0, -1, -1)
    script.call(0, SPAWN, 0, 8_000)  # row 0
    script.born(1, 1, 0, 0)
    script.born(2, 1, 0, 0)
    script.call(1, TOOL, 8_000, 5_000)  # row 1
    script.call(1, MESSAGE, 13_000, 1_000, target_group=3, claims_sent=1)  # row 2
    script.call(1, RETURN, 14_000, 2_000, arrival_ms=16_500)  # row 3
    script.call(2, TOOL, 8_000, 60_000)  # row 1
    script.call(2, RETURN, 68_000, 2_000, after=2)  # row 3
    script.call(0, WAIT, 8_000, 0)  # row 1
    script.call(0, AGGREGATE, 70_000, 5_000, after=4)  # row 5
    script.call(0, DELEGATE, 75_000, 3_000, target_uid=2)  # row 6
    script.call(0, SPAWN, 78_000, 2_000)  # row 7
    script.born(3, 1, 0, 7)
    script.call(0, DESPAWN, 80_000, 200, target_uid=1)  # row 8
    script.death[1] = 8
    script.call(0, WAIT, 80_200, 0)  # row 9
    script.call(2, TOOL, 78_000, 5_000, after=6)  # row 7
    script.call(2, RETURN, 83_000, 1_000)  # row 8
    script.call(3, TOOL, 80_000, 5_000)  # row 8
    script.call(3, RETURN, 85_000, 1_000)  # row 9
    script.call(0, AGGREGATE, 86_000, 4_000, after=10)  # row 11
    script.call(0, STOP, 90_000, 1_000)  # row 12
    return script


def name(call):
    return call.uid, call.kind.name, call.start_ms


def named_edges(found):
    return {(edge.kind, name(found.calls[edge.source]), name(found.calls[edge.target])) for edge in found.edges}


def named_path(found):
    return [name(found.calls[index]) for index in found.critical]


def test_calls_of_four_lives():
    found = timeline(four_lives().events(pad_slots=2))
    spans = [(call.uid, call.kind.name, call.start_ms, call.end_ms) for call in found.calls]
    assert spans == [
        (0, "SPAWN", 0, 8_000),
        (0, "WAIT", 8_000, 70_000),
        (0, "AGGREGATE", 70_000, 75_000),
        (0, "DELEGATE", 75_000, 78_000),
        (0, "SPAWN", 78_000, 80_000),
        (0, "DESPAWN", 80_000, 80_200),
        (0, "WAIT", 80_200, 86_000),
        (0, "AGGREGATE", 86_000, 90_000),
        (0, "STOP", 90_000, 91_000),
        (1, "TOOL", 8_000, 13_000),
        (1, "MESSAGE", 13_000, 14_000),
        (1, "RETURN", 14_000, 16_000),
        (2, "TOOL", 8_000, 68_000),
        (2, "RETURN", 68_000, 70_000),
        (2, "TOOL", 78_000, 83_000),
        (2, "RETURN", 83_000, 84_000),
        (3, "TOOL", 80_000, 85_000),
        (3, "RETURN", 85_000, 86_000),
    ]
    assert found.wall_ms == 91_000
    assert found.serial_ms == sum(end - start for _, kind, start, end in spans if kind != "WAIT")


def test_lives_of_four_lives():
    lives = timeline(four_lives().events()).lives
    assert lives.uid.tolist() == [0, 1, 2, 3]
    assert lives.parent.tolist() == [-1, 0, 0, 0]
    assert lives.start_ms.tolist() == [0, 8_000, 8_000, 80_000]
    assert lives.end_ms.tolist() == [91_000, 80_200, 91_000, 91_000]
    assert lives.despawned.tolist() == [False, True, False, False]
    assert picture.names(lives, ROLES) == ["lead", "searcher_1", "searcher_2", "searcher_3"]
    assert picture.names(lives) == ["lead", "role1_1", "role1_2", "role1_3"]


def test_edges_of_four_lives():
    assert named_edges(timeline(four_lives().events())) == {
        ("spawn", (0, "SPAWN", 0), (1, "TOOL", 8_000)),
        ("spawn", (0, "SPAWN", 0), (2, "TOOL", 8_000)),
        ("spawn", (0, "SPAWN", 78_000), (3, "TOOL", 80_000)),
        ("message", (1, "MESSAGE", 13_000), (2, "RETURN", 68_000)),
        ("return", (1, "RETURN", 14_000), (0, "AGGREGATE", 70_000)),
        ("return", (2, "RETURN", 68_000), (0, "AGGREGATE", 70_000)),
        ("wait", (2, "RETURN", 68_000), (0, "AGGREGATE", 70_000)),
        ("delegate", (0, "DELEGATE", 75_000), (2, "TOOL", 78_000)),
        ("return", (2, "RETURN", 83_000), (0, "AGGREGATE", 86_000)),
        ("return", (3, "RETURN", 85_000), (0, "AGGREGATE", 86_000)),
        ("wait", (3, "RETURN", 85_000), (0, "AGGREGATE", 86_000)),
    }


def test_critical_path_of_four_lives():
    assert named_path(timeline(four_lives().events())) == [
        (0, "SPAWN", 0),
        (2, "TOOL", 8_000),
        (2, "RETURN", 68_000),
        (0, "AGGREGATE", 70_000),
        (0, "DELEGATE", 75_000),
        (0, "SPAWN", 78_000),
        (3, "TOOL", 80_000),
        (3, "RETURN", 85_000),
        (0, "AGGREGATE", 86_000),
        (0, "STOP", 90_000),
    ]


def test_critical_path_passes_through_the_call_that_delegated():
    script = four_lives()
    script.calls[2][-2]["latency_ms"] = 20_000  # the second search now takes until 98 s and holds everybody up
    for call, clock in ((script.calls[2][-1], 98_000), (script.calls[0][-2], 99_000), (script.calls[0][-1], 103_000)):
        call["arrival_ms"] += clock - call["clock_ms"]
        call["clock_ms"] = clock
    path = named_path(timeline(script.events()))
    assert path[3:] == [
        (0, "AGGREGATE", 70_000),
        (0, "DELEGATE", 75_000),
        (2, "TOOL", 78_000),
        (2, "RETURN", 98_000),
        (0, "AGGREGATE", 99_000),
        (0, "STOP", 103_000),
    ]


def test_lanes_stand_in_tree_order():
    events = swarm(9, teams=3)
    found = timeline(events)
    lanes = picture._lanes(found, 12.0, 120, picture.names(found.lives, ROLES))
    order = [lanes.names[life] for life in np.argsort(lanes.y)]
    assert order[:6] == ["lead", "lead_1", "searcher_1", "searcher_2", "searcher_3", "lead_2"]
    assert np.all(np.diff(np.sort(lanes.y)) > lanes.height.min())


def test_an_unread_result_leaves_no_edge_when_its_child_is_despawned():
    script = four_lives()
    script.calls[0][-1]["row"] += 5
    despawn = script.calls[0].pop(5)
    despawn.update(clock_ms=60_000, row=4)
    script.calls[0].insert(2, despawn)
    script.death[1] = 4
    edges = named_edges(timeline(script.events()))
    assert ("return", (2, "RETURN", 68_000), (0, "AGGREGATE", 70_000)) in edges
    assert not any(kind == "return" and source[0] == 1 for kind, source, _ in edges)


def test_a_result_in_flight_is_read_by_the_ancestor_that_inherits_the_child():
    script = Script()
    script.born(0, 0, -1, -1)
    script.call(0, SPAWN, 0, 1_000)  # row 0
    script.born(1, 0, 0, 0)
    script.call(1, SPAWN, 1_000, 1_000)  # row 1
    script.born(2, 1, 1, 1)
    script.call(2, TOOL, 2_000, 4_000)  # row 2
    script.call(2, RETURN, 6_000, 1_000)  # row 3
    script.call(0, DESPAWN, 1_000, 5_500, after=3, target_uid=1)  # row 4
    script.death[1] = 4
    script.call(0, AGGREGATE, 8_000, 1_000, after=5)  # row 6
    script.call(0, STOP, 9_000, 1_000)
    events = script.events()
    late = (events.uid == 2) & (np.arange(len(events.uid))[:, None] > 4)
    events.parent_uid[late] = 0
    found = timeline(events)
    assert ("return", (2, "RETURN", 6_000), (0, "AGGREGATE", 8_000)) in named_edges(found)
    assert found.lives.parent.tolist() == [-1, 0, 1]


def test_messages_reach_the_group_that_lives_and_nobody_else():
    script = four_lives()
    script.calls[0].insert(
        5, {"kind": MESSAGE, "clock_ms": 80_000, "latency_ms": 0, "arrival_ms": 80_000, "row": 8, "target_group": 2}
    )
    script.calls[0][5]["claims_sent"] = 1
    for call in (*script.calls[0][6:], script.calls[2][-1], *script.calls[3]):
        call["row"] += 3  # nobody sees it in the tick in which it is sent
    script.death[1] = 7  # gone before the message
    sent = {(source, target) for kind, source, target in named_edges(timeline(script.events())) if kind == "message"}
    to_children = {target[0] for source, target in sent if source == (0, "MESSAGE", 80_000)}
    assert to_children == {2, 3}
    script.calls[0][5]["claims_sent"] = 0  # an empty message reaches nobody
    found = timeline(script.events())
    assert len(found.edges.of("message")) == 1
    script.calls[1][1].update(target_group=1, refused=1)  # and neither does an undeliverable one
    assert len(timeline(script.events()).edges.of("message")) == 0


def test_delegating_to_all_resumes_only_those_who_were_idle():
    script = four_lives()
    script.calls[0][3]["target_uid"] = -1
    edges = named_edges(timeline(script.events()))
    assert {edge for edge in edges if edge[0] == "delegate"} == {
        ("delegate", (0, "DELEGATE", 75_000), (2, "TOOL", 78_000))
    }


def test_a_wait_that_runs_into_its_deadline_stays_in_its_lane():
    script = four_lives()
    for call in (script.calls[2][1], script.calls[3][1]):  # both results arrive 100 ms before their wait ends
        call["latency_ms"] -= 100
        call["arrival_ms"] -= 100
    found = timeline(script.events())
    assert len(found.edges.of("wait")) == 0
    assert {uid for uid, _, _ in named_path(found)} == {0}


def test_of_two_results_that_arrive_together_one_is_chosen_whatever_the_slots():
    script = four_lives()
    script.calls[1][2]["arrival_ms"] = 70_000
    events = script.events(pad_slots=1)
    paths = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        shuffled = SimpleNamespace(**{key: value[:, order] for key, value in vars(events).items()})
        paths.append(named_path(timeline(shuffled)))
    assert paths[0] == paths[1] == paths[2]
    assert (2, "RETURN", 68_000) in paths[0]


def test_empty_slots_and_invalid_turns_are_ignored():
    events = four_lives().events(pad_slots=3)
    before = timeline(events)
    empty = events.uid < 0
    assert empty.sum() > 40
    rng = np.random.default_rng(0)
    for key, value in vars(events).items():
        if key != "uid":
            value[empty] = rng.integers(-(2**31), 2**31 - 1, int(empty.sum())) % (2 if value.dtype == bool else 2**40)
    after = timeline(events)
    assert named_edges(before) == named_edges(after)
    assert named_path(before) == named_path(after)
    assert picture.draw(events) == picture.draw(four_lives().events())
    row, slot = next(zip(*np.nonzero((events.uid == 2) & (events.kind == TOOL)), strict=True))
    events.valid[row, slot] = False
    assert len(timeline(events).calls) == len(before.calls) - 1


def test_rows_after_the_end_of_the_episode_are_ignored():
    events = four_lives().events()
    before = timeline(events)
    after = {key: np.concatenate([value, np.zeros_like(value[:5])]) for key, value in vars(events).items()}
    after["uid"][-5:] = events.uid[-1]  # nothing valid, clocks at 0
    found = timeline(SimpleNamespace(**after))
    assert named_edges(found) == named_edges(before)
    assert found.lives.end_ms.tolist() == before.lives.end_ms.tolist()


def test_every_call_of_a_swarm_starts_when_its_cause_says():
    found = timeline(swarm(40, rounds=3, messages=True, teams=4))
    calls, edges = found.calls, found.edges
    assert {EventKind(kind) for kind in calls.kind} >= {
        EventKind.SPAWN,
        EventKind.DELEGATE,
        EventKind.MESSAGE,
        EventKind.RETURN,
    }
    for kind in ("spawn", "delegate", "return", "message", "wait"):
        of_kind = edges.of(kind)
        assert len(of_kind) > 0
        assert np.all(calls.arrival_ms[of_kind.source] <= calls.start_ms[of_kind.target])
        assert np.all(calls.row[of_kind.source] < calls.row[of_kind.target])
    for kind in ("spawn", "delegate", "wait"):
        of_kind = edges.of(kind)
        assert np.array_equal(calls.arrival_ms[of_kind.source], calls.start_ms[of_kind.target])
    path = found.critical
    assert calls.start_ms[path[0]] == 0
    assert calls.end_ms[path[-1]] == found.wall_ms
    assert np.array_equal(calls.end_ms[path[:-1]], calls.start_ms[path[1:]])  # no hole: the path is the wall-clock


def test_draw_gives_a_png_within_its_limits(tmp_path):
    path = tmp_path / "episode.png"
    data = picture.draw(swarm(7), path, title="An episode", role_names=ROLES)
    assert data == path.read_bytes()
    width, height = png_size(data)
    assert width == 1_440
    assert height < 14 * 120
    assert len(data) < 200_000


def test_draw_is_repeatable_and_takes_arrays_of_any_library():
    jnp = pytest.importorskip("jax.numpy")
    events = swarm(5, messages=True)
    device = SimpleNamespace(
        **{key: jnp.asarray(value, bool if value.dtype == bool else jnp.int32) for key, value in vars(events).items()}
    )
    assert picture.draw(events) == picture.draw(events) == picture.draw(device)


def test_draw_gives_svg_for_the_suffix(tmp_path):
    path = tmp_path / "episode.svg"
    data = picture.draw(swarm(7), path, title="Costs $5 & more_than_that", role_names=ROLES)
    assert (
        data == path.read_bytes() == picture.draw(swarm(7), path, title="Costs $5 & more_than_that", role_names=ROLES)
    )
    assert data.startswith(b"<?xml")
    assert b"searcher_7" in data
    assert b"critical path" in data
    assert len(data) < 1_000_000


@pytest.mark.parametrize(
    "events",
    [
        swarm(0),
        swarm(1),
        swarm(7, rows=1),
        swarm(7, rows=2),
        swarm(7, rows=9),
        swarm(12, teams=3, despawn=True, messages=True, rows=17),
        swarm(60, idle=25),
        swarm(13, messages=True, despawn=True),
    ],
    ids=["single", "one worker", "one tick", "two ticks", "cut", "cut teams", "idle", "messages"],
)
@pytest.mark.parametrize("width_in", [4.0, 12.0])
def test_draw_takes_short_truncated_and_single_episodes(events, width_in):
    data = picture.draw(events, role_names=ROLES, width_in=width_in)
    assert png_size(data)[0] == width_in * 120


def test_a_truncated_wait_lasts_until_the_horizon():
    found = timeline(swarm(7, rows=9))
    last = found.calls[int(found.critical[-1])]
    assert (last.uid, last.kind) == (0, EventKind.WAIT)
    assert last.end_ms == found.calls.end_ms.max() == found.wall_ms


@pytest.mark.parametrize("width_in", [4.0, 12.0])
@pytest.mark.parametrize("teams", [0, 12])
def test_300_agents_stay_within_height_and_size(teams, width_in):
    events = swarm(300 - 1 - teams, teams=teams, messages=True)
    data = picture.draw(events, title="300 agents", role_names=ROLES, width_in=width_in)
    assert png_size(data)[1] <= 14 * 120
    assert len(data) < 1_000_000


def test_lives_that_never_worked_are_left_out_and_counted():
    found = timeline(swarm(99, idle=30))
    lanes = picture._lanes(found, 12.0, 120, picture.names(found.lives))
    assert lanes.hidden == np.isnan(lanes.y).sum() == 30
    assert not np.isnan(lanes.y[found.calls.life[found.critical]]).any()
    sheet = picture._Sheet(found, lanes, [], 120)
    assert "30 agents that never worked not drawn" in sheet._caption()


def test_300_lanes_of_4000_ticks_are_drawn_in_time():
    events = dense(4_000, 300)
    begin = time.process_time()
    data = picture.draw(events, title="Every slot acts in every tick", role_names=ROLES)
    assert time.process_time() - begin < 10
    assert png_size(data)[1] <= 14 * 120
    assert len(data) < 1_000_000


def test_calls_merged_into_pixels_keep_the_kind_that_fills_them(monkeypatch):
    monkeypatch.setattr(picture, "MAX_EXACT", 0)
    found = timeline(four_lives().events())
    lanes = picture._lanes(found, 12.0, 120, picture.names(found.lives))
    sheet = picture._Sheet(found, lanes, [], 120)
    left, right, life, kind = sheet._merged(np.arange(len(found.calls)))
    pixel = sheet.inch / 120
    for index, call in enumerate(found.calls):
        if call.end_ms - call.start_ms < 1_000:
            continue
        match = (life == found.calls.life[index]) & (kind == call.kind) & (abs(left - call.start_ms / 1e3) < pixel)
        assert match.sum() == 1
        assert abs(right[match] - call.end_ms / 1e3) <= pixel


def test_calls_carry_the_names_of_their_tools(tmp_path):
    events = swarm(3)
    events.tokens = np.full((*events.uid.shape, 2), 1)
    data = picture.draw(events, tmp_path / "a.svg", tool_names=("wait", "search"))
    assert b">search" in data


def test_bad_input_is_named(tmp_path):
    events = swarm(2)
    with pytest.raises(ValueError, match=r"'\.pdf'"):
        picture.draw(events, tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="width_in=1"):
        picture.draw(events, width_in=1)
    with pytest.raises(ValueError, match="clock_ms"):
        timeline(SimpleNamespace(uid=events.uid))
    with pytest.raises(ValueError, match=r"\[T, N\]"):
        timeline(SimpleNamespace(**(vars(events) | {"uid": events.uid[0]})))
    with pytest.raises(ValueError, match=r"events\.kind has shape"):
        timeline(SimpleNamespace(**(vars(events) | {"kind": events.kind[:-1]})))
    with pytest.raises(ValueError, match="no life"):
        timeline(SimpleNamespace(**(vars(events) | {"uid": np.full_like(events.uid, -1)})))
    with pytest.raises(ValueError, match="uid 0 runs backwards"):
        timeline(SimpleNamespace(**(vars(events) | {"clock_ms": -events.clock_ms})))


def test_without_matplotlib_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError) as caught:
        picture.draw(swarm(2))
    assert str(caught.value) == "a picture needs matplotlib: pip install 'ddpomdp[plot]'"


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, ddpomdp.picture; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])
