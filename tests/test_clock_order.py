"""Clock order: ticks are a schedule, clocks are time (model section 5)."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import clock_order
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts
from clock_order import Record, check

import ddpomdp
from ddpomdp import clocks, messages, observe
from ddpomdp.harness import RETURN
from ddpomdp.luck import Purpose, draw
from ddpomdp.params import TABLE, Params
from ddpomdp.pytree import replace, rows
from ddpomdp.rollouts import rollout

BATCH = 64
TICKS = 100  # of the schedule under test
STRICT_TICKS = 220
SLOW_MS = 30_000  # how much longer the delayed call takes
OPTIONS = {
    "capacity": 16,
    "num_subtasks": 24,
    "roster": 16,
    "counts": (1, 2, 3, 4, 6, 8, 12),
    "chunks": (1, 2, 4, "even"),
    "delegate_chunks": (1, 2, "even"),
    "delegate_briefs": ("detailed",),
    "max_ticks": 1_000,
}
# Compilation is most of the time of these tests; integers do not depend on how well the code is optimised.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture(autouse=True, scope="module")
def _broadcasts():
    """The package broadcasts by rank; the tests' own code does not."""
    with jax.numpy_rank_promotion("allow"):
        yield


# Episodes ----------------------------------------------------------------------------------------------------------


@functools.cache
def make(topology: str, strict: bool = False, model: str = "strong"):
    return ddpomdp.make("Search-v0", topology=topology, strict_order=strict, model=model, **OPTIONS)


def limited(params: Params, wait_limit_ms: int) -> Params:
    return replace(params, service=replace(params.service, wait_limit_ms=jnp.int32(wait_limit_ms)))


def checksum(x: jax.Array) -> jax.Array:
    """uint32 over the last axes of x [T, S, ...], bit by bit."""
    flat = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32).reshape(*x.shape[:2], -1)
    weights = (jnp.arange(flat.shape[-1], dtype=jnp.uint32) * jnp.uint32(2654435761)) | jnp.uint32(1)
    return jnp.sum(flat * weights, axis=-1, dtype=jnp.uint32)


def record(env, r) -> dict[str, Any]:
    """What the checker needs of a rollout."""
    names, columns = env.spec.self_features, env.spec.roster_features
    events = {n: getattr(r.next_ts.events, n) for n in clock_order.EVENT_FIELDS if n != "argument"}
    seen = r.ts.observation
    shown = {n: seen.self[..., names.index(n)] for n in clock_order.SHOWN_FIELDS if n != "blocked"}
    shown |= {n: jnp.round(x * 10).astype(jnp.int32) for n, x in shown.items() if n.startswith("children")}
    return {
        "events": events | {"argument": r.next_ts.events.tokens[:, :, 1]},
        "shown": shown | {"blocked": r.ts.blocked},
        "parent_slot": seen.parent_slot,
        "roster": jnp.stack([seen.roster[..., columns.index(n)] for n in clock_order.ROSTER_FIELDS], axis=-1),
        "roster_uid": seen.roster_uid,
        "totals": {n: r.ts.info[n][-1] for n in clock_order.TOTALS},
    }


def account(env, r) -> dict[str, Any]:
    """What two schedules must agree on: per own turn what was seen, called and came of it; at the end the answer."""
    seen, events, names = r.ts.observation, r.next_ts.events, env.spec.self_features
    own = checksum(seen.self) + checksum(seen.claims) + checksum(seen.last_result)
    board = checksum(seen.roster) + jnp.uint32(3) * checksum(seen.board)
    slots = jnp.arange(own.shape[1])
    held = (seen.parent_slot[:, :, None] == slots) & (seen.parent_slot >= 0)[:, :, None]
    own = own + jnp.sum(jnp.where(held, board[:, :, None], jnp.uint32(0)), axis=1, dtype=jnp.uint32)
    return {
        "acts": (events.uid >= 0) & ~r.ts.blocked & (seen.self[..., names.index("idle")] == 0),
        "uid": events.uid,
        "depth": seen.self[..., names.index("depth")],
        "lineage": r.ts.lineage,
        "turn": r.ts.turn,
        "clock": events.clock_ms,
        "seen": own,
        "call": jnp.concatenate([events.tokens, events.result_code[..., None]], axis=-1),
        "latency": events.latency_ms,
        "claims": jnp.stack([events.claims_sent, events.claims_received], axis=-1),
        "answer": r.state.answer,
        "quality": r.state.quality,
        "root_clock": rows(r.state.lives.clock_ms, r.state.place_slot)[0],
        "last": r.next_ts.last[-1],
        "stopped": r.state.stop_reason == 1,
        "limits": sum(
            r.next_ts.info[n][-1] for n in ("refused_births", "refused_places", "refused_rows", "refused_claims")
        )
        + r.next_ts.info["mail_sent"][-1],
    }


def compiled(env, num_ticks: int, *parts: Callable) -> Callable:
    """A function of keys [B], plan, params and slow int32[B], compiled once.

    Calls whose time to first token is drawn at place `slow` of the table (-1: none) take `SLOW_MS` longer.
    """

    def one(key, plan, params, slow):
        longer = (jnp.arange(TABLE) == slow).astype(jnp.int32) * SLOW_MS
        params = replace(params, service=replace(params.service, ttft_ms=params.service.ttft_ms + longer))
        r = rollout(env, scripts.Leads(env), plan, key, num_ticks, env_params=params)
        return tuple(part(env, r) for part in parts)

    run = jax.jit(jax.vmap(one, in_axes=(0, None, None, 0)))
    none = jnp.full(BATCH, -1, jnp.int32)
    return run.lower(batch_of_keys(0), scripts.plan(env), env.params, none).compile(compiler_options=QUICK)


def batch_of_keys(seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), BATCH)


@functools.cache
def fast(topology: str) -> Callable:
    return compiled(make(topology), TICKS, record, account)


@functools.cache
def strict(topology: str) -> Callable:
    return compiled(make(topology, strict=True), STRICT_TICKS, account)


def play(run: Callable, env, case: dict, seed: int, slow: np.ndarray | None = None) -> tuple[Any, Params]:
    """Run a case: what the parts of `run` give, as numpy, and the numbers used."""
    case = dict(case)
    slow = np.full(BATCH, -1, np.int32) if slow is None else slow
    params = make(env.options["topology"], model=case.pop("model", "strong")).params
    params = limited(params, case.pop("limit", 600_000))
    if not case.get("random"):  # two lives in one window compete for the places of claims, a shared limit
        params = replace(params, task=replace(params.task, copies=jnp.zeros(3, jnp.float32)))
    return jax.tree.map(np.asarray, run(batch_of_keys(seed), scripts.plan(env, **case), params, slow)), params


def episodes(batch: Any, params: Params) -> list[Record]:
    limits = {"wait_limit_ms": int(params.service.wait_limit_ms), "idle_ms": int(params.service.idle_ms)}
    cut = [jax.tree.map(lambda x, b=b: x[b], batch) for b in range(BATCH)]
    return [Record(**(e | {"totals": {n: int(x) for n, x in e["totals"].items()}} | limits)) for e in cut]


def replayed(batch: Any, params: Params) -> tuple[Counter, list]:
    counts, faults = Counter(), []
    for b, episode in enumerate(episodes(batch, params)):
        report = check(episode)
        counts += report.counts
        faults += [(b, *fault) for fault in report.faults]
    return counts, faults


# (1) Cause before effect, nothing missed ---------------------------------------------------------------------------

REPLAYED = {
    "swarm": [
        {"random": True},
        {"random": True},
        {"random": True, "limit": 30_000},
        {"random": True, "limit": 30_000},
        {"random": True, "limit": 5_000},
        {"wait": "all"},
        {"wait": "half"},
        {"wait": "one"},
        {"wait": "one", "count": 6, "chunk": 1, "more": 1},
        {"wait": "half", "count": 8, "chunk": 2, "more": 2, "limit": 30_000},
        {"wait": "all", "limit": 30_000},
    ],
    "hierarchical": [
        {"random": True},
        {"random": True, "limit": 30_000},
        {"random": True, "limit": 5_000},
        {"wait": "one", "count": 3, "sub": (4, 1), "sub_wait": "half", "more": 1},
        {"wait": "half", "count": 3, "sub": (4, 1), "sub_wait": "one", "more": 1, "limit": 30_000},
    ],
}
ALWAYS = (
    *("decisions", "births", "returns", "reads", "delegations", "blocked by the gate", "stragglers", "early readings"),
    *("waits for one ended", "waits for half ended", "waits for all ended", "waits ended by mail", "deadlines met"),
    *("despawns", "mail up", "mail down", "mail_delivered", "shared limit: births refused"),
    *("shared limit: mailbox in use", "exception: mail from above or beside came late"),
    *("exception: decided before mail from above or beside was sent", "exception: despawn later than its call"),
    "exception: mail merged, latest arrival counts",
)
HIERARCHICAL = ("adoptions", "mail beside", "blocked a tick longer, below a wait that ended")


def test_number_of_episodes():
    assert sum(map(len, REPLAYED.values())) * BATCH >= 1_000


@pytest.mark.parametrize("topology", REPLAYED)
def test_no_effect_before_its_cause_and_no_earlier_arrival_missed(topology):
    counts = Counter()
    for seed, case in enumerate(REPLAYED[topology]):
        (batch, _), params = play(fast(topology), make(topology), case, seed)
        found, faults = replayed(batch, params)
        assert not faults, (case, seed, Counter(kind for _, kind, *_ in faults), faults[:5])
        counts += found
    print(topology, dict(counts))
    for name in ALWAYS + HIERARCHICAL * (topology == "hierarchical"):
        assert counts[name] > 0, name


# The checker finds what is planted ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reading() -> list[Record]:
    """Episodes in which returns are read as they come."""
    (batch, _), params = play(fast("swarm"), make("swarm"), {"wait": "one", "count": 6, "chunk": 1, "more": 1}, 8)
    return episodes(batch, params)


@pytest.fixture(scope="module")
def writing() -> list[Record]:
    """Episodes with mail."""
    (batch, _), params = play(fast("swarm"), make("swarm"), {"random": True}, 0)
    return episodes(batch, params)


def doctored(records: list[Record], kind: int, shift: Callable) -> Counter:
    """Kinds of fault after one arrival (of an event of `kind`) was moved in each record."""
    kinds = Counter()
    for one in records:
        events = {name: values.copy() for name, values in one.events.items()}
        for t, slot in zip(*np.nonzero(events["kind"] == kind), strict=True):
            if shift(one, events, t, slot):
                break
        else:
            continue
        kinds[tuple(sorted(check(replace_events(one, events)).kinds()))] += 1
    return kinds


def replace_events(one: Record, events: dict) -> Record:
    return Record(**(vars(one) | {"events": events}))


def root_decisions(one: Record) -> list[tuple[int, int]]:
    """(tick, clock) of the root's decisions."""
    at = (one.events["uid"] == 0) & one.events["is_decision"]
    return [(t, int(one.events["clock_ms"][t, slot])) for t, slot in zip(*np.nonzero(at), strict=True)]


def test_an_arrival_moved_later_is_seen_before_its_cause(reading):
    def later(one, events, t, slot):
        events["arrival_ms"][t, slot] += 10_000_000
        return any(tick > t for tick, _ in root_decisions(one)[:-3])

    kinds = doctored(reading, clock_order.RETURN, later)
    assert sum(kinds.values()) == BATCH
    assert all("future" in found for found in kinds), kinds


def test_an_arrival_moved_earlier_has_been_missed(reading):
    def earlier(one, events, t, slot):
        missed = [clock for tick, clock in root_decisions(one) if tick <= t and clock > 0]
        if not missed or events["arrival_ms"][t, slot] <= missed[-1]:
            return False
        events["arrival_ms"][t, slot] = missed[-1]
        return True

    kinds = doctored(reading, clock_order.RETURN, earlier)
    assert sum(kinds.values()) >= BATCH // 2
    assert all("missed" in found for found in kinds), kinds


def test_mail_moved_before_a_decision_has_been_missed(writing):
    def earlier(one, events, t, slot):
        at = (events["uid"] == events["parent_uid"][t, slot]) & events["is_decision"]
        at &= (events["uid"][:, slot] == events["uid"][t, slot])[:, None]  # after the sender's birth
        decided = [int(events["clock_ms"][tick, s]) for tick, s in zip(*np.nonzero(at), strict=True) if tick <= t]
        if events["target_group"][t, slot] != clock_order.TO_PARENT or not decided:
            return False
        events["latency_ms"][t, slot] = 1
        events["clock_ms"][t, slot] = decided[-1] - 1
        events["arrival_ms"][t, slot] = decided[-1]
        return True

    kinds = doctored(writing, clock_order.MESSAGE, earlier)
    assert sum(kinds.values()) >= BATCH // 4
    assert all("missed" in found for found in kinds), kinds


def test_engines_with_a_fault_are_found(monkeypatch):
    """No gate: decisions miss arrivals. No wait for arrival: returns and mail show before they have arrived."""
    fault = {}
    real_gate, real_arrived, real_observe = clocks.gate, messages.arrived, observe.observe

    def gate(lives, mail, place_slot, strict_order):
        lives = real_gate(lives, mail, place_slot, strict_order)
        return replace(lives, blocked=jnp.where(fault["open"], lives.blocked & (lives.waiting > 0), lives.blocked))

    def arrived(mail, lives):
        early = lives.alive & ~lives.returned & (mail.count > 0)
        return jnp.where(fault["early"], early, real_arrived(mail, lives))

    def shows(engine, state, params):
        arrival = jnp.where(fault["early"], 0, state.lives.arrival_ms)
        return real_observe(engine, replace(state, lives=replace(state.lives, arrival_ms=arrival)), params)

    monkeypatch.setattr(clocks, "gate", gate)
    monkeypatch.setattr(messages, "arrived", arrived)
    monkeypatch.setattr(observe, "observe", shows)
    env = ddpomdp.make("Search-v0", topology="swarm", **OPTIONS)

    def one(key, plan, params, which):
        fault.update(open=which == 1, early=which == 2)
        r = rollout(env, scripts.Leads(env), plan, key, TICKS, env_params=params)
        return record(env, r)

    keys = batch_of_keys(5)
    plan = scripts.plan(env, random=True)
    run = jax.jit(jax.vmap(one, in_axes=(0, None, None, None)))
    run = run.lower(keys, plan, env.params, jnp.int32(0)).compile(compiler_options=QUICK)
    kinds = []
    for which in range(3):
        _, faults = replayed(jax.tree.map(np.asarray, run(keys, plan, env.params, jnp.int32(which))), env.params)
        kinds.append(Counter(kind for _, kind, *_ in faults))
    print(kinds)
    assert not kinds[0]
    assert kinds[1]["missed"] > 0 and kinds[1]["gate"] > 0
    assert kinds[2]["future"] > 0


# (2) The same answers as the engine in which only the smallest clock acts -----------------------------------------

COMPARED = {
    "swarm": [
        {"wait": "all"},
        {"wait": "all", "model": "weak"},
        {"wait": "half"},
        {"wait": "one", "count": 6, "chunk": 1, "more": 1},
        {"wait": "one", "count": 12, "chunk": 1, "more": 1, "model": "weak"},
        {"wait": "half", "count": 8, "chunk": 2, "more": 2, "model": "weak"},
        {"wait": "all", "limit": 140_000, "gives_up": True},
        {"wait": "half", "limit": 60_000, "gives_up": True, "model": "weak"},
    ],
    "hierarchical": [
        {"wait": "all", "count": 3, "sub": (4, "even")},
        {"wait": "one", "count": 3, "sub": (4, 1), "sub_wait": "half", "more": 1},
        {"wait": "all", "count": 3, "sub": (4, "even"), "limit": 45_000, "gives_up": True},
    ],
}


def turns_of(batch: dict, b: int, until: int, depth: int) -> dict[tuple, tuple]:
    """{(lineage, own turn): (clock, what was seen, call, what came of it)} of turns before clock `until`."""
    acts = batch["acts"][b] & (batch["clock"][b] < until) & (batch["depth"][b] <= depth)
    names = ("lineage", "turn", "clock", "seen", "call", "latency", "claims")
    columns = (batch[name][b][acts].tolist() for name in names)
    return {(*name, turn): rest for name, turn, *rest in zip(*columns, strict=True)}


@pytest.mark.parametrize("topology", COMPARED)
def test_equal_to_the_engine_in_which_only_the_smallest_clock_acts(topology):
    counts = Counter()
    for seed, case in enumerate(COMPARED[topology]):
        (_, quick), _ = play(fast(topology), make(topology), case, 100 + seed)
        (slow,), _ = play(strict(topology), make(topology, strict=True), case, 100 + seed)
        for batch in (quick, slow):
            assert batch["last"].all() and batch["stopped"].all(), case
            assert not batch["limits"].any(), case
        np.testing.assert_array_equal(quick["answer"], slow["answer"], str(case))
        np.testing.assert_array_equal(quick["quality"], slow["quality"], str(case))
        np.testing.assert_array_equal(quick["root_clock"], slow["root_clock"], str(case))
        # One actor at a time, in the order of clocks.
        actors = slow["acts"].sum(axis=2)
        assert actors.max() == 1
        assert (quick["acts"].sum(axis=2).max(axis=1) > 1).all()
        order = np.where(slow["acts"], slow["clock"], -1).max(axis=2)
        for b in range(BATCH):
            clocks_ = order[b][order[b] >= 0]
            assert (np.diff(clocks_) >= 0).all()
            # What every life saw and did until the root stopped, by own turn, not by tick.
            for depth in (1, 2):
                mine, theirs = (turns_of(batch, b, int(clocks_.max()), depth) for batch in (quick, slow))
                if depth == 2:  # children of sub-leads may be cut before they get there
                    assert len(theirs) - len(mine) < 30
                    mine, theirs = (
                        {name: turns[name] for name in mine.keys() & theirs.keys()} for turns in (mine, theirs)
                    )
                assert mine == theirs, (case, b)
            counts["turns"] += len(mine)
        counts["answered"] += int((slow["quality"] > 0.2).sum())
        counts["quick ticks"] += int((quick["uid"] >= 0).any(axis=2).sum())
        counts["strict ticks"] += int((slow["uid"] >= 0).any(axis=2).sum())
    print(topology, dict(counts))
    assert counts["answered"] > BATCH and counts["turns"] > 10_000
    assert counts["strict ticks"] > 2 * counts["quick ticks"]


# (3) Luck does not depend on ticks ---------------------------------------------------------------------------------


def delayable(batch: dict, b: int, key: jax.Array) -> tuple[int, int, int, int] | None:
    """(tick, slot, place in the table, arrival of the next return) of a worker's call that alone draws its place."""
    luck = jax.random.fold_in(key, 1)
    place = np.asarray(draw(luck, jnp.asarray(batch["lineage"][b]), jnp.asarray(batch["turn"][b]), Purpose.SERVICE))
    place = (place[..., 0] & (TABLE - 1)).astype(int)
    calls = batch["acts"][b] & (batch["call"][b][..., 0] != 0)
    used = np.bincount(place[calls], minlength=TABLE)
    for t, slot in zip(*np.nonzero(calls & (batch["depth"][b] > 0)), strict=True):
        returns = np.nonzero((batch["call"][b][t:, slot, 0] == RETURN) & batch["acts"][b][t:, slot])[0]
        if t >= 5 and used[place[t, slot]] == 1 and len(returns):
            back = t + returns[0]
            return t, slot, place[t, slot], int(batch["clock"][b][back, slot] + batch["latency"][b][back, slot])
    return None


@pytest.mark.parametrize("case", [{"wait": "one", "count": 8}, {"wait": "all"}], ids=str)
def test_luck_does_not_depend_on_ticks(case):
    """One call of one worker takes longer: until its parent hears of it, nothing else changes but ticks."""
    counts, seed, env = Counter(), 200, make("swarm")
    (_, base), _ = play(fast("swarm"), env, case, seed)
    found = [delayable(base, b, key) for b, key in enumerate(batch_of_keys(seed))]
    slow = np.asarray([-1 if call is None else call[2] for call in found], np.int32)
    (_, late), _ = play(fast("swarm"), env, case, seed, slow)
    for b, call in enumerate(found):
        if call is None:
            continue
        tick, slot, _, arrival = call
        name = tuple(base["lineage"][b][tick, slot])
        turns = []
        for batch in (base, late):
            acts = batch["acts"][b]
            names = [tuple(x) for x in batch["lineage"][b][acts]]
            values = zip(
                *(batch[n][b][acts].tolist() for n in ("turn", "clock", "seen", "call", "latency", "claims")),
                np.nonzero(acts)[0].tolist(),
                strict=True,
            )
            turns.append({(n, v[0]): v[1:] for n, v in zip(names, values, strict=True)})
        one, other = turns
        delayed = one[name, int(base["turn"][b][tick, slot])][3]
        assert other[name, int(base["turn"][b][tick, slot])][3] == delayed + SLOW_MS
        counts["delayed"] += 1
        for who, value in one.items():
            if who[0] == name or value[0] >= arrival:
                continue
            assert who in other, (b, who)
            assert other[who][:-1] == value[:-1], (b, who)
            counts["turns of the lead" if who[0] == tuple(base["lineage"][b][0, 0]) else "turns of others"] += 1
            counts["in another tick"] += other[who][-1] != value[-1]
        # The delayed worker itself: the same luck by own turn, until it comes back.
        for who, value in one.items():
            if who[0] == name and value[0] < arrival:
                assert other[who][2] == value[2], (b, who)
                counts["turns of the delayed"] += 1
        # With a lead that waits for all, nobody else is downstream before the end.
        if case["wait"] == "all":
            for who, value in one.items():
                if who[0] not in (name, tuple(base["lineage"][b][0, 0])):
                    assert other[who][:-1] == value[:-1], (b, who)
    print(case, dict(counts))
    assert counts["delayed"] > BATCH // 2
    assert counts["turns of others"] > 1_000 and counts["turns of the delayed"] > 100
    if case["wait"] == "one":
        assert counts["turns of the lead"] > 100
