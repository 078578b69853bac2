"""Edge cases, each as docs/model.md says it: full teams, ends, waits, despawns, budgets."""

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest
from play import Run, differing

from ddpomdp.enums import EventKind, ResultCode

STOPPED, BUDGET, HORIZON = 1, 2, 3


def swarm(seed=0, **service):
    return Run(play.game(preset="tiny"), seed, **service)


def deep(seed=0, **service):
    """Leads below leads, down to depth 3, and three parent places."""
    return Run(play.game(shape="narrow"), seed, **service)


def alone(seed=0):
    """Capacity 1; budgets of 30 turns and 2,600 tokens; horizon 40."""
    return Run(play.game(preset="tiny", capacity=1, max_ticks=40, max_turns=30, max_tokens=2_600), seed)


def spawn(count=1, role="searcher", chunk=2, brief="standard"):
    return "spawn", {"role": role, "count": count, "chunk": chunk, "brief": brief}


def back(claims="all", detail="full"):
    return "return", {"claims": claims, "detail": detail}


def alive(run):
    return sorted(int(u) for u in np.asarray(run.ts.uid)[np.asarray(run.ts.alive)])


# Births ------------------------------------------------------------------------------------------------------------


def test_spawn_into_a_full_team_is_refused_and_counted():
    run = swarm()
    run.step(u0=spawn(3))
    assert alive(run) == [0, 1, 2, 3]
    run.until_free()
    tokens = run.info("tokens")
    ts = run.step(u0=spawn(2))
    assert alive(run) == [0, 1, 2, 3]
    assert run.info("refused_births") == 2 and run.info("births") == 3
    assert ts.events.refused[0] == 2 and ts.events.valid[0]
    assert run.info("tokens") == tokens + 30  # the call stays charged, without a brief
    assert run.info("turns") == 2


def test_a_spawn_fills_as_many_as_fit():
    run = swarm()
    run.step(u0=spawn(2))
    run.until_free()
    ts = run.step(u0=spawn(3))
    assert alive(run) == [0, 1, 2, 3]
    assert run.info("refused_births") == 2 and ts.events.refused[0] == 2


def test_a_freed_slot_takes_a_new_life_one_tick_later():
    run = swarm()
    run.step(u0=spawn(3))
    slot = run.slot(1)
    run.step(u0=("despawn", {"who": "row_0"}))
    assert alive(run) == [0, 2, 3] and run.ts.terminated[slot] and run.ts.uid[slot] == 1
    run.until_free()
    run.step(u0=spawn(3))
    assert alive(run) == [0, 2, 3, 4] and run.slot(4) == slot
    assert run.info("refused_births") == 2 and run.info("deaths") == 1
    assert run.of(4, "turn") == 0 and run.ts.reward[slot] == 0 and not run.ts.terminated[slot]


def test_spawn_in_the_tick_that_ends_the_episode():
    run = swarm()
    for _ in range(31):
        run.step(u0="wait")
    assert not run.ts.last
    ts = run.step(u0=spawn(3))
    assert ts.last and ts.stop_reason == HORIZON
    assert alive(run) == [] and run.info("births") == 0
    assert run.info("refused_births") == 3 and ts.events.refused[0] == 3
    assert run.info("tokens") > 0 and run.info("turns") == 1


def test_free_places_are_never_part_of_legality():
    run = alone()
    for i in range(3):
        assert run.may(0, "spawn")
        ts = run.step(u0=spawn(3))
        assert ts.events.refused[0] == 3 and run.info("refused_births") == 3 * (i + 1)
    assert alive(run) == [0] and run.info("births") == 0


def test_capacity_one_plays_to_the_end():
    run = alone()
    while not run.may(0, "aggregate"):
        run.step(u0="search")
    run.step(u0=("aggregate", {"rule": "union"}))
    assert run.info("reported") == 1
    ts = run.step(u0="stop")
    assert ts.last and run.info("wall_s") == pytest.approx(run.info("serial_s"))
    noise = jax.random.key(3)
    run = alone(seed=5)
    steps = 0
    while not run.ts.last:
        ts = run.take(np.asarray(run.game.sample(jax.random.fold_in(noise, steps), run.ts)))
        steps += 1
        assert ts.events.valid[0]
    assert 0 < steps <= 40


def test_a_window_past_the_end_is_empty_and_counted():
    run = swarm()
    run.step(u0=spawn(3, chunk=2))
    assert not run.info("empty_selections")
    run.step(u0=("despawn", {"who": "row_0"}))
    run.until_free()
    run.step(u0=spawn(1, chunk=2))
    assert run.info("empty_selections") == 1
    assert run.of(4, "start") == run.of(4, "end") and not run.may(4, "search") and run.may(4, "return")


def chain(run):
    """Root 0, leads 1 and 2 below it, searchers 3 and 4 at depth 3; 0, 1 and 2 may decide."""
    message = "message", {"to": "children", "claims": "all", "detail": "full"}
    run.step(u0=spawn(1, role="lead"))
    run.step(u0=message, u1=spawn(1, role="lead"))
    run.step(u0=message, u1=message, u2=spawn(2))
    assert alive(run) == [0, 1, 2, 3, 4]
    assert not any(run.ts.blocked[run.slot(uid)] for uid in (0, 1, 2))


def test_depth_limit_and_roles():
    run = deep()
    chain(run)
    assert [int(run.of(uid, "depth")) for uid in (0, 1, 2, 3)] == [0, 1, 2, 3]
    roles = [int(run.ts.legal.bounds[run.slot(uid), 1]) for uid in (0, 1, 2)]
    assert roles == [3, 3, 2]  # no lead below depth 2: it could not hand on
    assert not run.may(3, "spawn")
    before = run.info("illegal")
    ts = run.take(run.turns(u3=spawn(), u2=spawn(1, role="lead")))
    assert run.info("illegal") == before + 2 and not ts.events.valid[run.slot(3)] and alive(run) == [0, 1, 2, 3, 4]


def test_when_everyone_spawns_the_limits_hold():
    """Every lead that may, spawns leads, in every tick: capacity and depth hold, the rest is refused and counted."""
    run, asked = deep(), 0
    while not run.ts.last:
        deciders = [u for u in alive(run) if run.may(u, "spawn")]
        roles = {u: "lead" if int(run.ts.legal.bounds[run.slot(u), 1]) == 3 else "searcher" for u in deciders}
        asked += 2 * len(deciders)
        run.step(**{f"u{u}": spawn(2, role) for u, role in roles.items()})
        if not run.ts.last:
            depth = np.asarray(run.state.lives.depth)[np.asarray(run.ts.alive)]
            assert len(alive(run)) <= 10 and depth.max() <= 3
    assert 2 <= depth.max() <= 3 and len(depth) == 10
    assert run.info("births") == 9 and run.info("refused_births") == asked - 9 > 50 and run.info("illegal") == 0
    assert run.ts.stop_reason == HORIZON


def test_parent_places_run_out():
    run = deep()
    chain(run)
    run.step(u0=spawn(2, role="lead"))  # 0, 1 and 2 hold the three places
    assert alive(run) == [0, 1, 2, 3, 4, 5, 6] and run.info("refused_places") == 0
    ts = run.step(u5=spawn(2))
    assert run.info("refused_places") == 1 and ts.events.refused[run.slot(5)] == 2 and ts.events.valid[run.slot(5)]
    assert alive(run) == [0, 1, 2, 3, 4, 5, 6] and run.of(5, "place") == -1


# Ends --------------------------------------------------------------------------------------------------------------


def test_stop_in_the_first_tick():
    run = swarm()
    ts = run.step(u0="stop")
    assert ts.last and ts.stop_reason == STOPPED
    assert run.info("quality") == 0 and run.info("reported") == 0
    assert ts.terminated[0] and not ts.truncated[0] and ts.events.end_reason[0] == 2
    assert run.info("tokens") == 0 and run.info("turns") == 1
    assert run.info("wall_s") == pytest.approx(float(ts.events.latency_ms[0]) / 1000) and run.info("wall_s") > 0
    assert float(ts.reward[0]) == pytest.approx(-1e-4 * run.info("wall_s"), rel=1e-4)


def test_stop_while_children_work():
    run = swarm()
    run.step(u0=spawn(2))
    assert not run.may(0, "stop")  # lead_blocks: children are out and nothing has arrived
    run.step(u0=("wait", {"for": "one"}), u1="search", u2=back())
    run.until_free(u1="search")
    assert run.may(0, "stop")
    tokens, searches = run.info("tokens_tool"), run.of(1, "turn")
    ts = run.step(u0="stop", u1="search")
    one, two = run.slot(1), run.slot(2)
    assert ts.last and ts.stop_reason == STOPPED
    assert ts.terminated[run.slot(0)] and not ts.truncated[run.slot(0)]
    assert ts.truncated[one] and not ts.terminated[one] and ts.truncated[two]
    assert run.info("tokens_tool") == tokens + 250 == 250 * (searches + 1)  # also that of the last tick
    assert alive(run) == [] and run.info("quality") == 0


@pytest.mark.parametrize("call, reason", [("stop", STOPPED), ("search", BUDGET), ("wait", HORIZON)])
def test_stopped_before_budget_before_horizon(call, reason):
    """In the last tick, with one turn left."""
    run = alone()
    for _ in range(29):
        run.step(u0=spawn(1))
    for _ in range(10):
        assert not run.step(u0="wait").last  # waits do not count as turns
    ts = run.step(u0=call)
    assert ts.last and ts.stop_reason == reason and ts.events.tick[0] == 40
    assert bool(ts.terminated[0]) == (reason != HORIZON) and bool(ts.truncated[0]) == (reason == HORIZON)
    assert run.info("turns") == (29 if reason == HORIZON else 30)


def test_stop_comes_before_the_budget_it_uses_up():
    run = alone()
    for _ in range(29):
        run.step(u0=spawn(1))
    assert run.step(u0="stop").stop_reason == STOPPED


def test_budget_of_tokens_is_finished_and_its_overshoot_priced():
    run = alone()
    for i in range(10):
        assert not run.step(u0="search" if run.may(0, "search") else spawn(1)).last, i
    spent = run.info("tokens")
    while not run.ts.last:
        spent = run.info("tokens")
        ts = run.step(u0="search" if run.may(0, "search") else spawn(1))
    assert ts.stop_reason == BUDGET and ts.terminated[0]
    assert spent < 2_600 < run.info("tokens") == spent + int(ts.events.cost_tokens[0].sum())
    price = 1e-6 * run.info("tokens") + 1e-4 * run.info("wall_s")
    assert float(ts.reward[0]) == pytest.approx(run.info("quality") - price, abs=1e-6)


def test_asking_one_worker_again_and_again_costs_and_ends():
    """A lead that reads and hands the same rows to the same worker again: it pays every time, until the horizon."""
    run, asked, spent = swarm(), 0, []
    run.step(u0=spawn(1))
    while not run.ts.last:
        calls = {}
        if not run.of(1, "returned"):
            calls["u1"] = back()
        if not run.ts.blocked[run.slot(0)]:
            calls["u0"] = ("wait", {"for": "all"})
            if run.may(0, "delegate"):
                calls["u0"], asked = ("delegate", {"to": "row_0", "rows": "again"}), asked + 1
                spent.append(run.info("tokens_orchestration"))
            elif run.may(0, "aggregate"):
                calls["u0"] = ("aggregate", {"rule": "majority"})
        ts = run.step(**calls)
    assert asked > 4 and run.info("births") == 1 and run.info("quality") == 0
    assert (np.diff(spent) >= 50 + 30 + 20).all()  # reading, handing out, the brief
    assert ts.stop_reason == HORIZON and ts.truncated[0] and ts.truncated[1]
    assert run.info("turns") >= 3 * asked  # a return, a reading, a hand-out each, out of one count


def test_horizon_cuts_everyone():
    run = swarm()
    run.step(u0=spawn(3))
    while not run.ts.last:
        ts = run.step()
    here = np.asarray(ts.events.uid) >= 0
    assert ts.stop_reason == HORIZON and here.all() and ts.truncated[here].all() and not ts.terminated.any()
    assert ts.events.tick[0] == 32


@pytest.mark.parametrize("deadline", [600_000, 3_000])
def test_the_end_moves_no_clock(deadline):
    run = swarm(wait_limit_ms=deadline, idle_ms=10)
    run.step(u0=spawn(3))
    clock = run.of(0, "clock_ms")
    run.step(u0=("wait", {"for": "all"}))
    while not run.ts.last:
        ts = run.step()
    assert ts.stop_reason == HORIZON
    assert run.info("wall_s") == pytest.approx(clock / 1000)


def random_turns(run, rng):
    """Anything at all, mostly in range."""
    shape = (run.env.spec.capacity, 1 + run.env.spec.num_args)
    return rng.integers(-1, run.env.spec.vocabulary + 1, shape).astype(np.int32)


@pytest.mark.parametrize("play_one", [swarm, deep, alone])
def test_a_step_after_the_end_changes_nothing(play_one):
    for seed in range(4):
        run = play_one()
        rng, noise = np.random.default_rng(seed), jax.random.key(seed)
        steps = 0
        while not run.ts.last:
            turns = np.array(run.game.sample(jax.random.fold_in(noise, steps), run.ts))
            turns[turns[:, 0] == 7] = 0  # nobody stops
            run.take(turns)
            steps += 1
        state, ts = run.state, run.ts
        for _ in range(2):
            after = run.take(random_turns(run, rng))
            assert differing(state, run.state) == []
            assert after.last and after.stop_reason == ts.stop_reason
            assert differing(ts.info, after.info) == []
            assert not after.alive.any() and not after.terminated.any() and not after.truncated.any()
            assert (after.uid == -1).all() and (after.reward == 0).all()
            assert all((channel == 0).all() for channel in after.channels.values())
            events = after.events
            assert (events.uid == -1).all() and not events.valid.any() and not events.is_decision.any()
            for name in ("kind", "tokens", "latency_ms", "cost_tokens", "refused", "end_reason", "clock_ms"):
                assert not np.asarray(getattr(events, name)).any(), name
            assert (after.legal.tools == 1).all()
            assert differing(ts.observation, after.observation) == []  # the last view stays


# Waits -------------------------------------------------------------------------------------------------------------


def test_a_wait_with_nothing_to_wait_for_costs_idle_ms():
    run = swarm()
    assert run.ts.legal.bounds[0, 0] == 1  # `one` only: there is nothing to wait for
    ts = run.step(u0="wait")
    assert run.of(0, "clock_ms") == 1_000 and run.of(0, "turn") == 1
    assert run.info("tokens") == 0 and run.info("turns") == 0 and ts.events.latency_ms[0] == 0
    assert ts.events.is_decision[0] and run.info("decisions") == 1  # a chosen wait is a decision


def test_wait_for_one_half_and_all():
    for what, returns in (("one", 1), ("half", 2), ("all", 3)):
        run = swarm(seed=2)
        run.step(u0=spawn(3))
        run.step(u0=("wait", {"for": what}))
        order = []
        for uid in (1, 2, 3):
            assert run.ts.blocked[run.slot(0)]
            run.step(**{f"u{uid}": back()})
            order.append(int(run.of(uid, "arrival_ms")))
            for _ in range(10):  # the rest goes on until its clocks have passed the arrival
                if not run.ts.blocked[run.slot(0)]:
                    break
                run.step()
            if not run.ts.blocked[run.slot(0)]:
                break
        assert len(order) == returns, what
        assert run.of(0, "clock_ms") == max(order)
        assert not run.ts.events.is_decision[run.slot(0)]  # forced waits are none


def test_a_wait_runs_into_its_deadline():
    run = swarm(wait_limit_ms=5_500)
    run.step(u0=spawn(1))
    clock = run.of(0, "clock_ms")
    run.step(u0=("wait", {"for": "all"}))
    assert not run.may(0, "stop")
    run.until_free()
    assert run.of(0, "clock_ms") == clock + 5_500
    assert run.of(1, "clock_ms") == clock + 6_000  # the first of its clocks that is not behind
    assert run.may(0, "stop") and run.of(0, "lifted")


# Returns, despawns, adoption ---------------------------------------------------------------------------------------


def test_despawn_in_the_tick_of_the_return_loses_it():
    run = swarm()
    run.step(u0=spawn(1))
    child = run.slot(1)
    ts = run.step(u0=("despawn", {"who": "row_0"}), u1=back())
    assert ts.events.kind[child] == EventKind.RETURN and ts.events.valid[child]
    assert ts.terminated[child] and ts.events.end_reason[child] == 1
    assert run.info("lost_returns") == 1 and run.info("returned_lives") == 0 and alive(run) == [0]
    assert run.info("tokens_message") == 20  # the call stays charged


def test_despawn_of_an_unread_worker_loses_its_return():
    run = swarm()
    run.step(u0=spawn(1))
    run.step(u0=("wait", {"for": "one"}), u1=back())
    run.until_free()
    run.step(u0=("despawn", {"who": "row_0"}))
    assert run.info("lost_returns") == 1 and run.info("returned_lives") == 1
    run = swarm()
    run.step(u0=spawn(1))
    run.step(u0=("wait", {"for": "one"}), u1=back())
    run.until_free()
    run.step(u0=("aggregate", {"rule": "union"}))
    run.step(u0=("despawn", {"who": "row_0"}))
    assert run.info("lost_returns") == 0 and run.info("deaths") == 1


def test_an_unread_worker_cannot_be_delegated_to():
    run = swarm()
    run.step(u0=spawn(2))
    run.step(u0=("wait", {"for": "all"}), u1="search", u2="search")
    run.step(u1=back(), u2=back())
    run.until_free()
    delegate = ("delegate", {"to": "all_idle", "rows": "next"})
    assert not run.may(0, "delegate") and run.may(0, "aggregate")
    ts = run.take(run.turns(u0=delegate))
    assert not ts.events.valid[0] and run.info("illegal") == 1 and ts.events.result_code[0] == ResultCode.ILLEGAL
    assert run.of(1, "unread") and run.of(1, "returned")
    run.step(u0=("aggregate", {"rule": "union"}))
    assert run.may(0, "delegate") and run.ts.legal.bounds[0, 2] == 3  # all idle, and two rows
    ts = run.step(u0=("delegate", {"to": "row_1", "rows": "next"}))
    assert ts.events.target_uid[0] == 2
    assert not run.of(2, "returned") and run.of(1, "returned")
    assert run.of(2, "end") > run.of(2, "start") >= 4
    assert run.ts.blocked[0] or run.ts.legal.bounds[0, 2] == 2


def test_reading_twice_reads_nothing_new():
    run = swarm()
    run.step(u0=spawn(1))
    while not run.may(0, "aggregate"):
        searching = {"u1": "search"} if run.may(1, "search") and run.info("tokens_tool") < 3_000 else {}
        waits = {} if run.ts.blocked[0] else {"u0": ("wait", {"for": "one"})}
        run.step(**waits, **(searching or ({} if run.of(1, "returned") else {"u1": back()})))
    got = run.step(u0=("aggregate", {"rule": "union"})).events.claims_received[0]
    load = run.of(0, "load")
    assert got > 0 and run.info("reported") == got
    ts = run.step(u0=("aggregate", {"rule": "union"}))
    assert ts.events.claims_received[0] == 0 and run.info("reported") == got and run.of(0, "load") == load


def test_children_of_a_despawned_parent_are_adopted():
    run = deep()
    run.step(u0=spawn(1, role="lead"))
    run.step(u0=("message", {"to": "children", "claims": "all", "detail": "full"}), u1=spawn(2))
    assert alive(run) == [0, 1, 2, 3] and not run.ts.blocked[run.slot(0)]
    middle, mail = run.slot(1), run.info("mail_undeliverable")
    ts = run.step(u0=("despawn", {"who": "row_0"}))
    assert ts.terminated[middle] and alive(run) == [0, 2, 3]
    assert run.info("adopted") == 2 and run.info("deaths") == 1 and run.info("lost_returns") == 0
    assert (np.asarray(run.state.place_slot) >= 0).sum() == 1  # its place is free again
    assert run.info("mail_undeliverable") == mail
    ts = run.step(u0=("message", {"to": "children", "claims": "all", "detail": "full"}))
    for uid in (2, 3):
        assert ts.events.parent_uid[run.slot(uid)] == 0 and run.of(uid, "depth") == 2
    run.until_free()
    assert run.ts.legal.bounds[run.slot(0), 3] == 2  # both stand in the root's roster
    run.step(u0=("wait", {"for": "all"}), u2=back(), u3=back())
    run.until_free()
    run.step(u0=("aggregate", {"rule": "union"}))
    assert not run.of(2, "unread") and not run.of(3, "unread")


def test_children_go_to_the_nearest_ancestor_that_lives_on():
    """Parent and grandparent leave in the same tick."""
    run = deep()
    chain(run)
    run.step(u0=("despawn", {"who": "row_0"}), u1=("despawn", {"who": "row_0"}))
    assert alive(run) == [0, 3, 4] and run.info("deaths") == 2 and run.info("adopted") == 2
    ts = run.step(u0="wait")
    assert all(ts.events.parent_uid[run.slot(uid)] == 0 and run.of(uid, "depth") == 3 for uid in (3, 4))


def test_mail_for_an_idle_worker_never_reaches_the_slots_next_life():
    run = swarm()
    run.step(u0=spawn(1))
    run.step(u0=("wait", {"for": "one"}), u1=back())
    run.until_free()
    run.step(u0=("aggregate", {"rule": "union"}))
    message = ("message", {"to": "row_0", "claims": "all", "detail": "full"})
    run.step(u0=message)
    assert run.info("mail_sent") == 1 and run.info("mail_in_flight") == 1
    ts = run.step(u0=message)  # its place is occupied
    assert run.info("mail_undeliverable") == 1 and ts.events.refused[0] == 1
    slot = run.slot(1)
    run.step(u0=("despawn", {"who": "row_0"}))
    assert run.info("mail_undeliverable") == 2 and run.info("mail_in_flight") == 0
    run.step(u0=spawn(1))
    assert run.slot(2) == slot and run.state.mail.count[slot] == 0 and not run.of(2, "known").any()
    for _ in range(3):
        run.step(u0=("wait", {"for": "one"})) if not run.ts.blocked[0] else run.step()
    assert run.info("mail_delivered") == 0 and run.info("mail_sent") == 2


def test_turns_of_blocked_and_idle_lives_are_ignored_but_waits():
    run = swarm()
    run.step(u0=spawn(1))
    run.step(u0=("wait", {"for": "one"}), u1=back())
    assert run.ts.legal.tools[run.slot(1)] == 1
    turns, illegal = run.turns(u1=("search", {})), run.info("illegal")
    twin = Run(run.game)
    twin.state, twin.ts = run.state, run.ts
    run.take(turns)
    twin.step()
    assert run.info("illegal") == illegal + 1
    totals = jax.tree.map(jnp.copy, run.state.totals)
    assert differing(run.state.lives, twin.state.lives) == []
    assert differing(totals, twin.state.totals) == [".illegal"]
