"""One decision changed: whoever is not downstream stays the same, bit for bit; slots are only places.

Model page, sections 3 and 7. Every test plays the two environments of `branches`, compiled once each.
"""

from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slots
from branches import BRANCHES, compare, game, play
from play import differing

import ddpomdp
from ddpomdp.pytree import replace

TOPOLOGIES = ("swarm", "hierarchical")
REFUSALS = ("refused_births", "refused_places", "refused_rows", "refused_claims")


@cache
def played(topology, seed=0):
    return play(game(topology), seed)


def pairs(record, these=range(BRANCHES)):
    return [pair for pair in (compare(record, b) for b in these) if pair]


def total(found, name):
    return sum(getattr(pair, name) for pair in found)


def some(found, name):
    return sum(getattr(pair, name) > 0 for pair in found)


def wrong(found):
    return [pair.wrong for pair in found if pair.wrong]


# Limits off ----------------------------------------------------------------------------------------------------------


def unlimited(record):
    """The pairs in which no birth, place, row or claim was ever refused."""
    refused = sum(record.after.info[name][-1] for name in REFUSALS)
    return pairs(record, np.flatnonzero(refused[:BRANCHES] + refused[BRANCHES:] == 0))


def check_branches(found):
    """Nobody outside the closure differs; decisions had effects; there was an outside to look at."""
    assert wrong(found) == []
    assert some(found, "changed") > 0.9 * len(found)  # the changed turn itself, at the least
    assert some(found, "spread") > 0.4 * len(found)  # and lives other than the one that decided
    assert some(found, "beside") > 0.4 * len(found)  # while others had nothing to do with it
    assert total(found, "same") > 8 * len(found)
    assert total(found, "by_schedule") < 0.05 * total(found, "beside")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_who_is_not_downstream_stays_the_same(topology):
    found = unlimited(played(topology))
    assert len(found) >= 100
    check_branches(found)


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_who_is_not_downstream_stays_the_same_in_1000_branches(topology):
    found = []
    for seed in range(100, 109):
        found += unlimited(play(game(topology), seed))
    assert len(found) >= 1_000
    check_branches(found)
    print({name: total(found, name) for name in ("same", "beside", "changed", "spread", "by_schedule", "touched")})


# Luck with a fault ---------------------------------------------------------------------------------------------------


def named_by_uid(state):
    """Lineages from uids: luck depends on how many were born before."""
    lives = state.lives
    uid = lives.uid.astype(jnp.uint32)
    lineage = jnp.stack([uid * jnp.uint32(0x9E3779B9), uid ^ jnp.uint32(0x85A308D3)], axis=-1)
    return replace(state, lives=replace(lives, lineage=lineage))


FAULTS = {
    "luck by uid": {"state_fault": jax.jit(named_by_uid)},
    "luck by tick": {"luck_fault": lambda luck, t: jax.vmap(lambda key: jax.random.fold_in(key, t))(luck)},
    "noise by head count": {
        "noise_fault": jax.jit(
            lambda noise, ts: jax.vmap(jax.random.fold_in)(noise, jnp.sum(ts.alive, axis=-1, dtype=jnp.int32))
        )
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_luck_with_a_fault_is_found(fault):
    """Ticks shift, and uids and head counts change, for lives that are not downstream too."""
    found = pairs(play(game("hierarchical"), 0, births=fault != "luck by tick", **FAULTS[fault]))
    assert len(wrong(found)) > (0 if fault == "luck by tick" else 3)


def test_records_with_a_fault_are_found():
    """One bit of what one life sees in one turn is flipped, once for each branch that has somebody beside."""
    record, tried = played("swarm"), 0
    for b in range(60):
        pair = compare(record, b)
        if pair is None or not pair.beside:
            continue
        tried += 1
        t, n = pair.example
        seen = np.array(record.ts.observation.self)
        seen.view(np.uint32)[t, b, n, 4] ^= 1
        ts = replace(record.ts, observation=replace(record.ts.observation, self=seen))
        assert len(compare(replace(record, ts=ts), b).wrong) == 1
    assert tried > 15


# Limits on -----------------------------------------------------------------------------------------------------------


def nearly_used_up(lives, rows):
    """States in which all but a few of a role's lives, and of the entries of some rows, are used up."""

    def prepare(state):
        born = state.born.at[:, 1].set(lives)
        full = jnp.arange(state.log.count.shape[1]) % rows == 0
        return replace(state, born=born, log=replace(state.log, count=jnp.where(full, 15, state.log.count)))

    return prepare


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_with_limits_on_only_those_touched_by_one_differ(topology):
    env = game(topology).env
    most = env.spec.max_lives["searcher"]
    record = play(game(topology), 1, prepare=nearly_used_up(most - 4, 2))
    found = pairs(record)
    info = record.after.info
    assert (info["refused_births"][-1] > 0).sum() > 20 and (info["refused_claims"][-1] > 0).sum() > 20
    assert wrong(found) == []
    assert some(found, "touched") > 20 and some(found, "beside") > 20


# No consequences -----------------------------------------------------------------------------------------------------


@pytest.mark.slow  # a compilation of its own; test_luck.py has the same of states
def test_a_decision_without_consequences_has_no_effect_on_the_return():
    at = game("swarm")
    env = at.env
    policy = ddpomdp.policy("swarm", env, n=3)
    params, turn = policy.init(env), env.harness.turn
    free = replace(env.params, price_token=jnp.float32(0))  # what is asked is what calls lead to, not what they cost
    lucks = jax.random.split(jax.random.key(8), 6)

    @jax.jit
    def effect(state, slot, turns, memory, luck):
        returns = ddpomdp.branch(
            env, state, slot, turns, policy, params, luck, memory=memory, num_ticks=80, env_params=free
        )
        return returns - returns[:1]

    luck, first = lucks[0], lambda tree: jax.tree.map(lambda x: x[0], tree)
    every = jnp.stack([luck] * 2 * BRANCHES)
    states, shown = at.reset(every, every)
    state, ts = first(states), first(shown)
    memory = policy.carry(env)
    effects, idle, unread = {}, 0, 0
    talk = [turn("message", to="parent", claims=c, detail=d) for c, d in (("all", "full"), ("best", "summary"))]
    for _ in range(80):
        turns, after, _ = policy.act(params, jax.random.fold_in(luck, 2), memory, ts)
        alive, returned = np.asarray(state.lives.alive), np.asarray(state.lives.returned & state.lives.alive)
        knows = np.asarray(state.lives.known).any(axis=-1)

        def measure(name, slot, *choices):
            stacked = jnp.stack([jnp.asarray(c, jnp.int32) for c in (*choices, *(choices[-1],) * (3 - len(choices)))])
            effects.setdefault(name, []).append(np.asarray(effect(state, slot, stacked, memory, lucks)))  # noqa: B023

        if returned.any() and idle < 3:  # an idle life may only wait: what it says instead is not heard
            idle += 1
            measure("idle", int(np.flatnonzero(returned)[0]), turn("wait"), turn("search"), turn("stop"))
        talkers = [n for n in np.flatnonzero(alive) if n and not knows[n] and not returned[n]]
        if talkers and len(effects.get("talk", ())) < 2:  # which of no claims, at what detail
            measure("talk", int(talkers[0]), *talk)
        stops = int(turns[0, 0]) == env.harness.tool("stop") and not bool(ts.blocked[0])
        if stops:  # what a worker finds in the tick in which the root stops is read by nobody
            unread += 1
            measure("last", 1, turn("wait"), turn("return", claims="all", detail="full"))
        if int(ts.turn[0]) == 0:
            measure("spawn", 0, turns[0], turn("stop"), turn("search"))
        memory = after
        states, shown = at.step(every, states, jnp.broadcast_to(turns, (2 * BRANCHES, *turns.shape)))
        state, ts = first(states), first(shown)
        if bool(ts.last):
            break
    assert bool(ts.last) and idle > 0 and unread == 1 and len(effects["talk"]) > 0
    for name in ("idle", "talk", "last"):
        assert all((np.asarray(x) == 0).all() for x in effects[name]), name
    assert (effects["spawn"][0][1] != 0).all()  # the measurement sees consequences where there are some


# Slots ---------------------------------------------------------------------------------------------------------------


def beside_twins(topology, twin, loads_within=0.0):
    """What differs after a step from states and from their twins, every third tick of random play, {part: count}."""
    at, rng = game(topology), np.random.default_rng(3)
    column = at.env.spec.self_features.index("load")
    half = jax.random.split(jax.random.key(5), BRANCHES)
    keys = jnp.concatenate([half, half])
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    noise = jax.vmap(lambda key: jax.random.fold_in(key, 2))(keys)
    head = lambda tree: jax.tree.map(lambda x: x[:BRANCHES], tree)  # noqa: E731
    join = jax.jit(lambda one, two: jax.tree.map(lambda x, y: jnp.concatenate([x[:BRANCHES], y[:BRANCHES]]), one, two))
    (state, ts), found, reads = at.reset(keys, luck), Counter(), 0
    for t in range(40):
        turns = np.array((at.other if t % 2 else at.turns)(noise, ts))
        if t % 3 == 0:
            order = np.stack([rng.permutation(at.env.spec.capacity) for _ in range(BRANCHES)])
            other, turns[BRANCHES:] = twin(head(state), turns[:BRANCHES], order)
            after, shown = at.step(luck, join(state, other), turns)
            told = slots.by_life(after, shown, column)
            halves = [{name: x[i * BRANCHES : (i + 1) * BRANCHES] for name, x in told.items()} for i in (0, 1)]
            found.update(slots.unequal(*halves, loads_within))
            reads += int((shown.events.kind[:BRANCHES] == ddpomdp.EventKind.AGGREGATE).sum())
            state, ts = join(after, after), join(shown, shown)  # on from the first half, in both
        else:
            state, ts = at.step(luck, state, turns)
    assert int(ts.info["births"][:BRANCHES].sum()) > 300 and reads > 30
    return found


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_slots_dealt_out_anew_change_nothing_but_the_slots(topology):
    deal = jax.jit(jax.vmap(slots.permuted))

    def twin(state, turns, order):
        return deal(state, order), np.take_along_axis(turns, order[:, :, None], axis=1)

    # A reading load is a sum of floats over slots: it may differ in its last bits, and nothing else may.
    assert beside_twins(topology, twin, loads_within=1e-5) == {}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_garbage_in_empty_slots_changes_nothing(topology):
    spoil = jax.jit(jax.vmap(slots.poisoned))
    rng = np.random.default_rng(4)
    seen = []

    def twin(state, turns, order):
        seen.append(differing(state, spoil(jax.random.split(jax.random.key(len(seen)), BRANCHES), state)))
        other = spoil(jax.random.split(jax.random.key(len(seen) - 1), BRANCHES), state)
        junk = rng.integers(-3, 20, turns.shape)
        return other, np.where(np.asarray(state.lives.alive)[:, :, None], turns, junk)

    assert beside_twins(topology, twin) == {}
    assert all(len(names) > 50 for names in seen)  # so many fields were filled with garbage
