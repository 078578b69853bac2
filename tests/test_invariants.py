"""Section 3 of the model as invariants over random legal steps, checked in numpy from events and TimeSteps.

Axis letters: T tick, B batch, N slot, P parent place.
"""

import numpy as np
import play
import pytest

from ddpomdp.enums import EventKind, Group, LifeEnd
from ddpomdp.harness import AGGREGATE, CORE_TOOLS, DELEGATE, MESSAGE, SPAWN

STEPS = {"swarm": (64, 330), "hierarchical": (64, 260), "narrow": (64, 200)}  # environments, ticks


@pytest.fixture(scope="session", params=STEPS)
def seen(request):
    """A batch of random play and what follows from it by counting."""
    return Seen(request.param, play.random_play(play.make_shape(request.param), *STEPS[request.param]))


class Seen:
    """Random play with the derived arrays the checks share."""

    def __init__(self, name, played):
        self.name = name
        self.env, self.spec, self.topology = played.env, played.env.spec, played.env.rules.topology
        self.before, self.state, self.after, self.turns = played.before, played.state, played.after, played.turns
        self.events = played.after.events
        self.last = played.after.last  # [T, B]
        self.episode = np.cumsum(self.last, axis=0) - self.last  # number of the episode a tick belongs to
        self.on = ~self.last[..., None]  # the episode goes on: `state` is of the same episode
        self.acting = self.before["alive"] & ~self.before["returned"] & ~self.before["blocked"]
        self.leaving = self.events.end_reason == LifeEnd.DESPAWNED
        self.newborn = self.on & self.state["alive"] & ~self.before["alive"]
        self.stays = self.on & self.before["alive"] & self.state["alive"]

    def tool(self, index):
        """bool[T, B, N]: calls of a tool."""
        return self.acting & (self.turns[..., 0] == index)

    def is_child_of_row(self):
        """bool[T, B, N, N]: slot j is a child of slot i, before the tick."""
        uid, parent = self.before["uid"], self.before["parent_uid"]
        return (parent[..., None, :] == uid[..., :, None]) & self.alive_pair

    @property
    def alive_pair(self):
        alive = self.before["alive"]
        return alive[..., None, :] & alive[..., :, None]

    def running_sum(self, per_tick):
        """[T, B]: sum over the episode so far of per_tick [T, B]."""
        total = np.cumsum(per_tick, axis=0, dtype=np.int64)
        base = np.where(self.last, total, 0)
        base = np.maximum.accumulate(np.concatenate([np.zeros_like(base[:1]), base[:-1]]), axis=0)
        return total - base


def test_enough_happened(seen):
    assert seen.last.size == np.prod(STEPS[seen.name])
    assert sum(envs * ticks for envs, ticks in STEPS.values()) >= 50_000
    kinds = np.unique(seen.events.kind[seen.events.uid >= 0])
    assert set(kinds) == {k.value for k in EventKind if k != EventKind.FOLD}
    calls = np.bincount(seen.turns[..., 0][seen.acting], minlength=len(seen.spec.tools))
    assert len(calls) == len(CORE_TOOLS) + 2 == 10
    assert (calls > 0).all(), dict(zip(seen.spec.tools, calls, strict=True))
    at_end = {name: int(value[seen.last].sum()) for name, value in seen.after.info.items()}
    happened = ["births", "deaths", "refused_births", "refused_claims", "lost_returns", "returned_lives"]
    happened += ["mail_sent", "mail_delivered", "mail_undeliverable", "mail_in_flight", "empty_selections", "mail_late"]
    happened += ["refused_rows"] if seen.topology.name == "swarm" else ["adopted", "refused_places"]
    assert {name: at_end[name] for name in happened if at_end[name] == 0} == {}
    assert set(np.unique(seen.after.stop_reason[seen.last])) == {1, 3}


def test_all_sampled_turns_are_legal(seen):
    assert (seen.events.valid == seen.before["alive"]).all()
    assert (seen.after.info["illegal"] == 0).all()
    forced = seen.before["alive"] & ~seen.acting
    assert forced.sum() > 1_000
    assert (seen.before["tools"][forced] == 1).all()  # only `wait`
    assert (seen.before["tools"] & 1 == 1).all()


def test_events_speak_of_who_was_alive(seen):
    assert (seen.events.uid == np.where(seen.before["alive"], seen.before["uid"], -1)).all()
    assert (seen.events.parent_uid == np.where(seen.before["alive"], seen.before["parent_uid"], -1)).all()
    quiet = seen.before["alive"] & ~seen.acting
    events = seen.events
    assert (events.kind[quiet] == EventKind.WAIT).all()
    assert not events.is_decision[quiet].any()
    assert (events.latency_ms[quiet] == 0).all() and (events.cost_tokens[quiet] == 0).all()
    none = ~seen.before["alive"]
    assert not events.valid[none].any() and (events.cost_tokens[none] == 0).all() and (events.kind[none] == 0).all()


def test_capacity_and_one_root(seen):
    for where in (seen.before, seen.state):
        alive, uid = where["alive"], where["uid"]
        assert (alive.sum(-1) <= seen.spec.capacity).all()
        assert ((uid == 0) & alive).sum(-1).all()
        rows = np.sort(np.where(alive, uid, -1 - np.arange(alive.shape[-1])), axis=-1)
        assert (np.diff(rows, axis=-1) != 0).all()  # no uid in two slots
        assert ((uid >= 0) >= alive).all()
    full = seen.before["alive"].all(-1)
    assert full.sum() > 100
    assert (seen.after.info["alive"] == seen.after.alive.sum(-1)).all()


def test_ids_and_lineages_never_repeat_and_slots_do(seen):
    t, b, n = np.nonzero(seen.newborn)
    uid, lineage = seen.state["uid"][t, b, n], seen.state["lineage"][t, b, n]
    episode = seen.episode[t, b]
    assert len(uid) > 1_000 and (uid > 0).all()
    assert len(np.unique(np.stack([b, episode, uid]), axis=1).T) == len(uid)
    assert len(np.unique(np.stack([b, episode, *lineage.T.astype(np.int64)]), axis=1).T) == len(uid)
    reused = len(uid) - len(np.unique(np.stack([b, episode, n]), axis=1).T)
    assert reused > 50
    # A life keeps its slot, its name, its role and its depth.
    for name in ("uid", "role", "depth"):
        assert (seen.before[name] == seen.state[name])[seen.stays].all()
    assert (seen.before["lineage"] == seen.state["lineage"])[seen.stays].all()
    # uids count births, without gaps.
    births = seen.running_sum(seen.newborn.sum(-1))
    assert (births == seen.after.info["births"]).all()
    assert (np.where(seen.state["alive"], seen.state["uid"], 0).max(-1) <= births)[~seen.last].all()
    assert (births[t, b] >= uid).all()


def test_a_freed_slot_is_not_filled_in_the_same_tick(seen):
    assert seen.leaving.sum() > 100
    assert not seen.after.alive[seen.leaving].any()
    assert not (seen.newborn & seen.before["alive"]).any()
    # It can be filled one tick later, and is.
    ready = seen.leaving[:-1] & ~seen.last[:-1, :, None] & seen.newborn[1:]
    assert ready.sum() > 0


def test_lives_end_once_and_are_flagged(seen):
    events, after = seen.events, seen.after
    ends = events.end_reason != LifeEnd.ALIVE
    assert (ends == (after.terminated | after.truncated)).all()
    assert not (after.terminated & after.truncated).any()
    assert (ends == (seen.before["alive"] & ~after.alive)).all()
    assert (events.end_reason == LifeEnd.EPISODE)[seen.last[..., None] & seen.before["alive"] & ~seen.leaving].all()
    assert not after.alive[seen.last].any()  # nobody acts after the end
    assert (seen.running_sum(seen.leaving.sum(-1)) == after.info["deaths"]).all()
    stopped = (after.stop_reason == 1)[..., None]
    root = seen.before["uid"] == 0
    assert after.terminated[np.broadcast_to(stopped, root.shape) & root & seen.before["alive"]].all()
    cut = stopped & ~root & seen.before["alive"] & ~seen.leaving
    assert cut.sum() > 20 and after.truncated[cut].all()


def test_newborns(seen):
    born, after = seen.newborn, seen.after
    assert (after.uid == seen.state["uid"])[born].all() and after.alive[born].all()
    assert (after.reward[born] == 0).all()
    assert all((value[born] == 0).all() for value in after.channels.values())
    assert not after.terminated[born].any() and not after.truncated[born].any()
    assert (seen.events.uid[born] == -1).all() and (seen.state["turn"][born] == 0).all()
    # It acts in the next tick: no child keeps it waiting.
    assert (seen.events.uid[1:][born[:-1]] == seen.state["uid"][:-1][born[:-1]]).all()
    assert seen.acting[1:][born[:-1]].all()


def test_nobody_is_ownerless(seen):
    for where in (seen.before, seen.state):
        child = where["alive"] & (where["uid"] != 0)
        assert child.sum() > 10_000
        same = (where["parent_uid"][..., :, None] == where["uid"][..., None, :]) & where["alive"][..., None, :]
        assert same.any(-1)[child].all()  # the parent is alive ...
        holds = (where["parent_uid"][..., :, None] == where["holder_uid"][..., None, :]).any(-1)
        assert holds[child].all()  # ... and holds a place
        slot = same.argmax(-1)
        of_parent = lambda x: np.take_along_axis(x, slot, axis=-1)  # noqa: B023, E731
        assert (of_parent(where["depth"]) < where["depth"])[child].all()
        assert (of_parent(where["role"]) == 0)[child].all()  # only leads have children
        root = where["alive"] & (where["uid"] == 0)
        assert (where["parent_uid"][root] == -1).all() and (where["depth"][root] == 0).all()
    born = seen.newborn
    assert (seen.state["depth"] == np.take_along_axis(seen.state["depth"], slot, axis=-1) + 1)[born].all()
    assert (seen.state["depth"][seen.state["alive"]] <= seen.topology.max_depth).all()
    assert (seen.state["depth"][seen.state["alive"]] == seen.topology.max_depth).any()


def test_parent_places(seen):
    for where in (seen.before, seen.state):
        holder = where["holder_uid"]
        assert holder.shape[-1] == seen.topology.max_parents
        assert (holder[..., 0] == 0).all()
        ordered = np.sort(np.where(holder >= 0, holder, -1 - np.arange(holder.shape[-1])), axis=-1)
        assert (np.diff(ordered, axis=-1) != 0).all()
        # A place is held as long as there are children; the root's always.
        parents = (holder[..., :, None] == where["parent_uid"][..., None, :]) & where["alive"][..., None, :]
        assert (parents.any(-1) | (holder <= 0) | (holder == -1)).all()
    if seen.topology.name == "narrow":
        assert (holder >= 0).all(-1).sum() > 100


def test_adoption(seen):
    """When a parent leaves, its children go to the nearest live ancestor."""
    moved = seen.stays & (seen.before["parent_uid"] != seen.state["parent_uid"])
    assert (seen.running_sum(moved.sum(-1)) == seen.after.info["adopted"])[~seen.last].all()
    if seen.topology.max_parents == 1:
        assert not moved.any()
        return
    assert moved.sum() > 20
    for t, b, n in zip(*np.nonzero(moved), strict=True):
        uids = list(seen.before["uid"][t, b])
        ancestor = seen.before["parent_uid"][t, b, n]
        assert seen.leaving[t, b, uids.index(ancestor)]
        while seen.leaving[t, b, uids.index(ancestor)]:
            ancestor = seen.before["parent_uid"][t, b, uids.index(ancestor)]
        assert seen.state["parent_uid"][t, b, n] == ancestor


def test_births_are_served_in_order(seen):
    """Places, slots and lives per role go to parents in the order of their parent's uid, then uid."""
    spec, topology, before = seen.spec, seen.topology, seen.before
    counts = seen.env.rules.offered[SPAWN, "count"]
    role_of = seen.env.rules.offered[SPAWN, "role"]
    most = list(spec.max_lives.values())
    spawns = seen.tool(SPAWN)
    asked_all = np.where(spawns, counts[np.minimum(seen.turns[..., 2], len(counts) - 1)], 0)
    refused_births = np.zeros(seen.last.shape, np.int64)
    placed = holds(before)
    refused_places = np.sum(seen.tool(AGGREGATE) & ~placed, axis=-1)
    event_refused = np.zeros(spawns.shape, np.int64)
    full = lives_out = 0
    used = {}
    for t, b in zip(*np.nonzero(spawns.any(-1)), strict=True):
        episode = (b, seen.episode[t, b])
        uid, parent = before["uid"][t, b], before["parent_uid"][t, b]
        slots = sorted(np.nonzero(spawns[t, b])[0], key=lambda n: (parent[n], uid[n]))
        places = topology.max_parents - np.sum(before["holder_uid"][t, b] >= 0)
        free = np.sum(~before["alive"][t, b])
        so_far = used.setdefault(episode, [1, *[0] * (len(most) - 1)])
        granted = {}
        for n in slots:
            gone = seen.leaving[t, b, n]
            if gone or (places == 0 and not placed[t, b, n]):
                refused_places[t, b] += not gone
                refused_births[t, b] += asked_all[t, b, n]
                event_refused[t, b, n] = asked_all[t, b, n]
                continue
            if not placed[t, b, n]:
                places -= 1
            role = role_of[seen.turns[t, b, n, 1]]
            got = min(asked_all[t, b, n], free, most[role] - so_far[role])
            lives_out += got < min(asked_all[t, b, n], free)
            if seen.last[t, b]:
                got = 0
            free, so_far[role] = free - got, so_far[role] + got
            refused_births[t, b] += asked_all[t, b, n] - got
            event_refused[t, b, n] = asked_all[t, b, n] - got
            granted[uid[n]] = (got, role)
            full += got < asked_all[t, b, n]
        if seen.last[t, b]:
            continue
        born = seen.newborn[t, b]
        order = np.argsort(np.where(born, seen.state["uid"][t, b], 10**6))[: born.sum()]
        mothers = list(seen.state["parent_uid"][t, b][order])
        roles = list(seen.state["role"][t, b][order])
        expected = [(mother, role) for mother, (got, role) in granted.items() for _ in range(got)]
        assert list(zip(mothers, roles, strict=True)) == expected
    assert full > 100
    at_end = spawns & seen.last[..., None]
    assert at_end.sum() > 5  # spawns in a tick that ends the episode: nobody is born, and it is counted
    assert (event_refused == seen.events.refused)[spawns].all()
    assert (seen.running_sum(refused_births) == seen.after.info["refused_births"]).all()
    assert (seen.running_sum(refused_places) == seen.after.info["refused_places"]).all()
    assert lives_out > 0 or seen.topology.name != "swarm"


def holds(where):
    """bool[..., N]: lives that hold a parent place."""
    return (where["uid"][..., :, None] == where["holder_uid"][..., None, :]).any(-1) & where["alive"]


def test_messages_add_up(seen):
    info, events = seen.after.info, seen.events
    assert (info["mail_sent"] == info["mail_delivered"] + info["mail_in_flight"] + info["mail_undeliverable"]).all()
    # How many receivers each message reached for, counted from who was whose child.
    children = seen.is_child_of_row().sum(-1)
    parent = seen.before["parent_uid"]
    siblings = ((parent[..., :, None] == parent[..., None, :]) & seen.alive_pair).sum(-1) - 1
    is_message = seen.tool(MESSAGE)
    group = events.target_group
    to_one = is_message & (group == Group.NONE)
    sent = np.where(is_message & (group == Group.PARENT), 1, 0) + to_one
    sent = sent + np.where(is_message & (group == Group.CHILDREN), children, 0)
    sent = sent + np.where(is_message & (group == Group.PEERS), siblings, 0)
    assert (seen.running_sum(sent.sum(-1)) == info["mail_sent"]).all()
    assert not (group > 0)[~is_message].any()
    is_mine = (seen.before["uid"][..., None, :] == events.target_uid[..., :, None]) & seen.is_child_of_row()
    assert to_one.sum() > 100 and is_mine.any(-1)[to_one].all()
    for index in range(1, 4 if seen.topology.peers else 3):
        assert (is_message & (group == index)).sum() > 100


def test_budget_spent_is_the_sum_of_charges(seen):
    info, events = seen.after.info, seen.events
    for i, purpose in enumerate(("task", "orchestration", "message", "tool")):
        assert (seen.running_sum(events.cost_tokens[..., i].sum(-1)) == info[f"tokens_{purpose}"]).all()
    assert (seen.running_sum(events.cost_tokens.sum((-1, -2))) == info["tokens"]).all()
    assert (seen.running_sum((events.kind != EventKind.WAIT).sum(-1)) == info["turns"]).all()
    assert (seen.running_sum(events.is_decision.sum(-1)) == info["decisions"]).all()
    serial = seen.running_sum(events.latency_ms.sum(-1))
    np.testing.assert_allclose(info["serial_s"], serial / 1000, rtol=1e-6, atol=1e-3)
    assert (info["tokens"] > 0).any() and (events.is_decision == (seen.acting & (events.legal_count > 1))).all()


def test_clocks_and_turn_numbers(seen):
    before, state, events, stays = seen.before, seen.state, seen.events, seen.stays
    assert (state["clock_ms"] >= before["clock_ms"])[stays].all()
    assert (events.clock_ms == before["clock_ms"])[before["alive"]].all()
    calls = seen.acting & (events.kind != EventKind.WAIT)
    assert (events.latency_ms[calls] >= 1).all() and (events.latency_ms[~calls] == 0).all()
    assert (state["clock_ms"] >= before["clock_ms"] + events.latency_ms)[stays].all()
    assert (state["turn"] == before["turn"] + seen.acting)[stays].all()
    # A parent's clock is where its newborns start.
    t, b, n = np.nonzero(seen.newborn)
    mother = state["parent_uid"][t, b, n]
    slot = (before["uid"][t, b] == mother[:, None]).argmax(-1)
    start = before["clock_ms"][t, b, slot] + events.latency_ms[t, b, slot]
    assert (state["clock_ms"][t, b, n] == start).all()
    # The gate: whoever may decide has no running child behind its own clock.
    running = seen.is_child_of_row() & ~before["returned"][..., None, :]
    behind = running & (before["clock_ms"][..., None, :] < before["clock_ms"][..., :, None])
    assert not behind.any(-1)[seen.acting].any()
    assert behind.any(-1).sum() > 100


def test_wall_clock_is_the_roots_clock_at_the_end(seen):
    """The end moves no clock: what ends in a tick is where its own call or wait has brought it."""
    t, b = np.nonzero(seen.last)
    root = (seen.before["uid"][t, b] == 0).argmax(-1)
    events = seen.events
    start, took = seen.before["clock_ms"][t, b, root], events.latency_ms[t, b, root]
    wall = seen.after.info["wall_s"][t, b]
    idle = seen.acting[t, b, root] & (events.kind[t, b, root] == EventKind.WAIT)
    children = seen.is_child_of_row()[t, b, root].any(-1)
    plain = ~idle & ~children
    assert plain.sum() > 10
    np.testing.assert_allclose(wall[plain], (start + took)[plain] / 1000, rtol=1e-6)
    # With children out, a wait that has not come to its target yet ends where it was asked for.
    latest = np.where(seen.before["alive"], seen.before["clock_ms"] + events.latency_ms, 0)[t, b].max(-1)
    far = np.maximum(latest, start + took + 1_000) + 1
    assert (~plain).sum() > 10
    assert (wall <= far / 1000).all(), (wall - far / 1000).max()


def test_returns(seen):
    info, events = seen.after.info, seen.events
    back = (events.kind == EventKind.RETURN) & ~seen.leaving
    t, b, n = np.nonzero(back)
    key = np.stack([b, seen.episode[t, b], events.uid[t, b, n]])
    _, first = np.unique(key[:, np.argsort(t, kind="stable")], axis=1, return_index=True)
    firsts = np.zeros(seen.last.shape, np.int64)
    order = np.argsort(t, kind="stable")[first]
    np.add.at(firsts, (t[order], b[order]), 1)
    assert (seen.running_sum(firsts) == info["returned_lives"]).all()
    # Idle and unread until read; a despawn before that loses it, also in the tick of the return.
    assert seen.state["unread"][back & seen.on].all() and seen.state["returned"][back & seen.on].all()
    assert (seen.before["turn"] == seen.state["turn"])[seen.stays & seen.before["returned"]].all()
    together = seen.leaving & (events.kind == EventKind.RETURN)
    lost = together | (seen.leaving & seen.before["unread"])
    assert together.sum() > 0 and lost.sum() > together.sum()
    assert (seen.running_sum(lost.sum(-1)) == info["lost_returns"]).all()
    # Only read ones are handed new work.
    worked = seen.stays & seen.before["returned"] & ~seen.state["returned"]
    assert worked.sum() > 50 and not (worked & seen.before["unread"]).any()
    mother = (seen.before["uid"][..., None, :] == seen.before["parent_uid"][..., :, None]).argmax(-1)
    assert np.take_along_axis(seen.tool(DELEGATE), mother, axis=-1)[worked].all()


def test_refused_rows_and_claims(seen):
    info, events = seen.after.info, seen.events
    is_tool = events.kind == EventKind.TOOL
    assert (seen.running_sum(np.where(is_tool, events.refused, 0).sum(-1)) == info["refused_claims"]).all()
    hands = np.where(events.kind == EventKind.DELEGATE, events.refused, 0).sum(-1)
    assert (seen.running_sum(hands) == info["refused_rows"]).all()
    assert (seen.state["queue_len"] <= 4 * seen.spec.num_subtasks).all()
    grown = seen.state["queue_len"] > seen.before["queue_len"]
    assert grown[~seen.last].sum() > 10
    if seen.topology.name == "swarm":  # refused only where the queue is full
        assert (seen.state["queue_len"] == 4 * seen.spec.num_subtasks)[(hands > 0) & ~seen.last].all()
