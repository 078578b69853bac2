"""Luck is local: to a life and its own turn, not to who else lives, what empty slots hold or the topology's name."""

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest
from jax.extend.random import threefry_2x32
from play import Run, differing

from ddpomdp.luck import ROOT_LINEAGE, Purpose, child_lineage, draw, key_words, life_key, noise_keys, threefry, unit
from ddpomdp.params import confidence_table
from ddpomdp.pytree import replace
from ddpomdp.testing.slots import poisoned

# Threefry ------------------------------------------------------------------------------------------------------------


def test_threefry_is_jaxs():
    rng = np.random.default_rng(0)
    k0, k1 = rng.integers(0, 2**32, 2, dtype=np.uint32)
    c0, c1 = rng.integers(0, 2**32, (2, 5_000), dtype=np.uint32)
    ours = jnp.concatenate(threefry(k0, k1, jnp.asarray(c0), jnp.asarray(c1)))
    theirs = threefry_2x32(jnp.array([k0, k1]), jnp.concatenate([jnp.asarray(c0), jnp.asarray(c1)]))
    assert (ours == theirs).all()
    assert (jnp.concatenate(jax.jit(threefry)(k0, k1, jnp.asarray(c0), jnp.asarray(c1))) == theirs).all()


# Known answers of the reference implementation (Random123, kat_vectors: threefry2x32, 20 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 4, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("words, expected", KNOWN)
def test_threefry_known_answers(words, expected):
    assert tuple(int(x) for x in threefry(*(np.uint32(w) for w in words))) == expected


def test_draws_differ_by_life_turn_and_purpose():
    key = jax.random.key(5)
    root = jnp.asarray(ROOT_LINEAGE, jnp.uint32)
    places, turns = jnp.arange(40, dtype=jnp.int32), jnp.arange(25, dtype=jnp.int32)
    lineage = jax.vmap(lambda t: jax.vmap(lambda i: child_lineage(root, t, i))(places))(turns).reshape(-1, 2)
    assert len(np.unique(lineage, axis=0)) == 1_000
    words = jnp.stack([draw(key, lineage, jnp.int32(turn), p) for turn in (0, 1) for p in Purpose]).reshape(-1, 2)
    assert len(np.unique(words, axis=0)) == len(words) == 1_000 * 2 * len(Purpose)
    u = np.asarray(unit(words[:, 0]))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    assert (draw(key, lineage[0], jnp.int32(3), 1) == jnp.stack(threefry(*life_key(key, lineage[0]), 3, 1))).all()
    raw = jax.random.PRNGKey(5)
    assert [int(x) for x in key_words(raw)] == [int(x) for x in key_words(key)]
    keys = noise_keys(key, Run(play.game(preset="tiny")).ts)
    assert keys.shape == (4,) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


# Locality ------------------------------------------------------------------------------------------------------------


def rows_of(run, slot):
    """Everything shown of a slot, and its life, but what others share."""
    ts, lives = run.ts, run.state.lives
    shown = (ts.observation.self, ts.observation.claims, ts.observation.last_result, ts.reward, ts.turn, ts.lineage)
    return jax.tree.map(lambda x: np.asarray(x)[slot], (shown, ts.events, ts.blocked, ts.legal, lives))


def spawn(count, chunk=2):
    return "spawn", {"role": "searcher", "count": count, "chunk": chunk, "brief": "detailed"}


def test_another_workers_turn_has_effect_exactly_0_on_everyone_else():
    """One worker waits instead of searching; until something of it reaches them, nobody notices."""
    compared = changed = 0
    for seed in range(15):
        original, branch = (Run(play.game(preset="tiny"), seed) for _ in range(2))
        for run in (original, branch):
            run.step(u0=spawn(3))
            run.step(u0=("wait", {"for": "all"}), u1="search", u2="search", u3="search")
        for tick in range(5):
            others = {f"u{u}": "search" for u in (2, 3) if original.may(u, "search")}
            mine = {"u1": "search"} if original.may(1, "search") else {}
            original.step(**mine, **others)
            branch.step(**(mine if tick else {"u1": "wait"}), **others)
            slots = [original.slot(u) for u in (0, 2, 3)]
            for slot in slots:
                assert differing(rows_of(original, slot), rows_of(branch, slot)) == []
                compared += 1
            changed += bool(differing(rows_of(original, original.slot(1)), rows_of(branch, branch.slot(1))))
            if not branch.may(1, "search"):
                break
    assert compared > 150 and changed > 50


def test_a_decision_without_consequences_has_effect_exactly_0():
    """Which claims of none to send, and how many details of them, changes nothing but the turn itself."""
    for seed in range(4):
        runs = [Run(play.game(preset="tiny"), seed) for _ in range(3)]
        for run, claims, detail in zip(runs, ("all", "best", "disputed"), ("full", "summary", "full"), strict=True):
            run.step(u0=spawn(3))
            run.step(u0=("wait", {"for": "all"}), u1=("message", {"to": "parent", "claims": claims, "detail": detail}))
        for _ in range(8):
            for run in runs[1:]:
                assert differing(runs[0].state, run.state) == []
            searching = {f"u{u}": "search" for u in (1, 2, 3) if runs[0].may(u, "search")}
            for run in runs:
                run.step(**searching)
        assert all(run.info("mail_sent") == 1 and run.info("mail_undeliverable") == 0 for run in runs)


def test_luck_depends_neither_on_who_else_lives_nor_on_the_tick():
    """The first child of a spawn has the same luck alone and beside siblings, at once and after waiting."""
    outcomes = 0
    for seed in range(10):
        histories = []
        for siblings, pause in ((0, 0), (2, 0), (2, 3)):
            run = Run(play.game(preset="tiny"), seed)
            run.step(u0=spawn(1 + siblings))
            run.step(u0=("wait", {"for": "all"}), **({} if pause else {"u1": "search"}))
            history = [run.ts]
            for _ in range(pause):  # forced waits of others: the child's own turns are what counts
                run.step(u1="wait")
            for _ in range(6):
                run.step(**({"u1": "search"} if run.may(1, "search") else {}))
                history.append(run.ts)
            slot = run.slot(1)
            rows = [(ts.events, ts.turn) for ts in history]
            fields = [(int(e.kind[slot]), int(e.latency_ms[slot]), int(e.result_code[slot])) for e, _ in rows]
            histories.append([(int(turn[slot]) - 1, *field) for (_, turn), field in zip(rows, fields, strict=True)])
        assert histories[0] == histories[1]
        by_turn = [{h[0]: h[1:] for h in history if h[1] == 9} for history in histories]
        shared = set(by_turn[1]) & set(by_turn[2])
        # After a pause the same own turn numbers draw the same service times; the row in progress differs.
        assert all(by_turn[1][turn][1] == by_turn[2][turn][1] for turn in shared)
        outcomes += len(shared)
    assert outcomes > 10


# Empty slots ---------------------------------------------------------------------------------------------------------


def test_empty_slots_influence_nothing():
    env = play.make_shape("narrow")
    num_envs, num_ticks = 32, 120

    def one(key, luck, state, ts, fresh):
        turns = play.sample(env, key, ts, False, jax.random.bits(key) % 2 == 0)
        junk = jax.random.randint(key, turns.shape, -3, 20)
        both = jax.tree.map(lambda *x: jnp.stack(x), state, poisoned(key, state))
        turns = jnp.stack([turns, jnp.where(ts.alive[:, None], turns, junk)])
        states, shown = jax.vmap(lambda s, t: env.step(luck, s, t))(both, turns)
        alive = states.lives.alive[0]
        # What is left in an emptied mailbox place, or stands in for the root's roster row, means nothing.
        full = alive & (states.mail.count[0] > 0)
        letter = lambda x: jnp.where(full.reshape(1, -1, *(1,) * (x.ndim - 2)), x, jnp.zeros_like(x))  # noqa: E731
        mail = replace(jax.tree.map(letter, states.mail), count=states.mail.count)
        lives = replace(states.lives, rank=jnp.where(states.lives.home[:1] >= 0, states.lives.rank, 0))
        bits = lambda x: x if x.dtype != jnp.float32 else jax.lax.bitcast_convert_type(x, jnp.int32)  # noqa: E731
        equal = lambda x: jnp.all(bits(x)[0] == bits(x)[1])  # noqa: E731
        living = lambda x: jnp.all((bits(x)[0] == bits(x)[1]) | ~alive.reshape(-1, *(1,) * (x.ndim - 2)))  # noqa: E731
        by_life = (lives, mail, states.legal)
        rest = replace(states, lives=None, mail=None, legal=None)
        named = lambda tree, same: {  # noqa: E731
            jax.tree_util.keystr(path): same(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)
        }
        out = {"rest": named(rest, equal), "lives": named(by_life, living), "shown": named(shown, equal)}
        out["empty"], out["born"] = jnp.sum(~state.lives.alive), jnp.sum(alive & ~state.lives.alive)
        out["ends"] = shown.last[0]
        at = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(shown.last[0], a, b), new, old)  # noqa: E731
        return pick(fresh, (at(states), at(shown))), out

    @jax.jit
    def play_all(key):
        lucks = jax.random.split(key, num_envs)
        fresh = jax.vmap(env.reset)(lucks, lucks)

        def tick(carry, t):
            keys = jax.vmap(lambda luck: jax.random.fold_in(luck, t))(lucks)
            return jax.vmap(one)(keys, keys, *carry, fresh)

        return jax.lax.scan(tick, fresh, jnp.arange(num_ticks))[1]

    out = jax.tree.map(np.asarray, play_all(jax.random.key(7)))
    assert out["empty"].sum() > 5_000 and out["born"].sum() > 300 and out["ends"].sum() > 20
    for part in ("rest", "lives", "shown"):
        wrong = {name: int((~same).sum()) for name, same in out[part].items() if not same.all()}
        assert wrong == {}, part


# Fixed teams ---------------------------------------------------------------------------------------------------------


def test_without_spawning_results_equal_a_fixed_team():
    """Topology single against a swarm in which nobody is spawned: the same turns, bit for bit."""
    single, swarm = play.game(preset="tiny", topology="single"), play.game(preset="tiny")
    finished = answered = 0
    for seed in range(40):
        one, many = Run(single, seed), Run(swarm, seed)
        noise = jax.random.key(seed)
        for tick in range(33):
            turns = np.array(single.sample(jax.random.fold_in(noise, tick), one.ts))
            if turns[0, 0] == 7 and tick < seed % 20:
                turns[0] = 0
            assert bool(many.env.harness.is_legal(many.ts.legal, jnp.asarray(turns))[0])
            one.take(turns)
            many.take(turns)
            assert differing(replace(one.state, legal=None), replace(many.state, legal=None)) == []
            events = [replace(run.ts.events, legal_count=jnp.zeros(4)) for run in (one, many)]
            shown = [replace(run.ts, legal=None, events=e) for run, e in zip((one, many), events, strict=True)]
            assert differing(*shown) == []
            if one.ts.last:
                finished += 1
                break
        answered += one.info("quality") > 0
    assert finished == 40 and answered > 5


# Confidences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bias", "skill"), [(0.4, 0.8), (2.0, 0.5), (2.0, 0.8), (0.6, 0.8)])
def test_a_confidence_alone_never_tells_right_from_wrong(bias, skill):
    wrong, right = np.asarray(confidence_table(bias, skill))
    assert set(wrong) == set(right) and len(set(wrong)) > 30 and wrong.max() <= 2**16
    middle = [1 / (1 + np.exp(-(bias + skill * side))) for side in (0, 1)]
    np.testing.assert_allclose([np.median(wrong) / 2**16, np.median(right) / 2**16], middle, atol=1 / 64)
