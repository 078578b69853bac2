"""Critics: rows of a trace and their folding by hand, steps of a life, and what a memory of the trace explains."""

import dataclasses
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp.enums import EventKind
from ddpomdp.pytree import replace
from ddpomdp_baselines import algorithms, critics, prefix
from ddpomdp_baselines.critics import Critic
from ddpomdp_baselines.experience import collect, group_keys, settled
from ddpomdp_baselines.learner import Sizes, Update, critic_of, start
from ddpomdp_baselines.network import Network, choices
from ddpomdp_baselines.train import memory_bytes
from ddpomdp_envs import control_env
from ddpomdp_envs.control import WORK

SUBTASKS, TICKS, EPISODES = 8, 12, 128


@dataclass(frozen=True)
class Told:
    """A script that also says where it had a choice, as a learner wants to know."""

    script: control_env.Chooser

    def init(self, env):
        return self.script.init(env)

    def carry(self, env):
        return self.script.carry(env)

    def act(self, params, key, carry, ts):
        turns, carry, _ = self.script.act(params, key, carry, ts)
        choice = choices(self.script.env.harness, ts.legal, turns)
        return turns, carry, {"logp": jnp.zeros(turns.shape), "choice": choice}


# Rows ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    return control_env.make_env("Additive-v0", preset="tiny")


def log_of(*ticks):
    """A log of one episode; of each tick the events (slot, uid, parent, kind, first token) of three slots."""
    shape = len(ticks), 1, 3
    empty = {name: np.zeros(shape, np.int32) for name in ("kind", "role", "code")}
    uid, parent = np.full(shape, -1), np.full(shape, -1)
    tokens, chosen = np.zeros((*shape, 4), np.int32), np.zeros(shape, bool)
    for t, events in enumerate(ticks):
        for slot, own, of, kind, token in events:
            at = t, 0, slot
            uid[at], parent[at], empty["kind"][at], empty["role"][at] = own, of, kind, own > 0
            tokens[at][0], chosen[at] = token, True
    numbers = np.zeros((*shape, len(prefix.NUMBERS)), np.float32)
    log = prefix.Log(uid=uid, parent_uid=parent, chosen=chosen, tokens=tokens, numbers=numbers, **empty)
    return jax.tree.map(jnp.asarray, log)


def column(env, found, name):
    return np.asarray(found.rows)[0][:, prefix.features(env).index(name)].tolist()


SPAWN, RETURN, TOOL, STOP = EventKind.SPAWN, EventKind.RETURN, EventKind.TOOL, EventKind.STOP
# Life 1 works, bears life 2, which works and returns to it; then life 1 returns, works again and never returns.
STORY = log_of(
    [(0, 0, -1, SPAWN, 1)],
    [(1, 1, 0, TOOL, 8)],
    [(1, 1, 0, SPAWN, 1)],
    [(2, 2, 1, TOOL, 8), (0, 0, -1, TOOL, 8)],
    [(2, 2, 1, RETURN, 4)],
    [(1, 1, 0, RETURN, 4)],
    [(1, 1, 0, TOOL, 8)],
    [(0, 0, -1, STOP, 7)],
)


def test_rows_by_hand(small):
    found = prefix.prefix_of(small, STORY, 4, fold=False, rows=12)
    assert np.asarray(found.tick)[0].tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 7, *[prefix.NEVER] * 3]
    assert column(small, found, "root") == [1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]  # slots in their order within a tick
    assert column(small, found, "token_0_8") == [0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert column(small, found, "kind_return") == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(column(small, found, "events"), [np.log(2)] * 9 + [0] * 3, rtol=1e-6)
    assert column(small, found, "kind_fold") == [0] * 12 and found.dropped[0] == 0
    # Before tick 3 the events of ticks 0, 1 and 2 have been seen, and none of tick 3.
    assert np.asarray(found.before(9))[:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    short = prefix.prefix_of(small, STORY, 4, fold=False, rows=6)
    assert np.asarray(short.tick)[0].tolist() == [0, 1, 2, 3, 3, 4] and short.dropped[0] == pytest.approx(3 / 9)
    np.testing.assert_array_equal(short.rows[0], found.rows[0, :6])


def test_a_finished_branch_is_one_row(small):
    found = prefix.prefix_of(small, STORY, 4, fold=True, rows=6)
    # The lead's spawn, its call, the branch of lives 1 and 2 as it returns at tick 5, the lead's stop. What life 1 did
    # after that has not been returned and is nowhere.
    assert np.asarray(found.tick)[0].tolist() == [0, 3, 5, 7, *[prefix.NEVER] * 2]
    assert column(small, found, "root") == [1, 1, 0, 1, 0, 0] and column(small, found, "kind_fold") == [
        0,
        0,
        1,
        0,
        0,
        0,
    ]
    shares = {"kind_tool": 2 / 5, "kind_spawn": 1 / 5, "kind_return": 2 / 5, "token_0_8": 2 / 5, "role_worker": 1.0}
    for name, share in shares.items():
        assert column(small, found, name)[2] == pytest.approx(share), name
    assert column(small, found, "events")[2] == pytest.approx(np.log(6))
    assert found.dropped[0] == 0


# Steps --------------------------------------------------------------------------------------------------------------


def test_pay_is_that_of_the_decision_before_it():
    # One slot: life 1 decides at ticks 1 and 3, leaves after tick 4 with 10 still due; life 2 decides at tick 6.
    uid = np.asarray([1, 1, 1, 1, 1, 2, 2, 2, -1])
    paid = np.asarray([0.5, 1, 2, 4, 8, 16, 32, 64, 0])
    late = np.where(uid == 1, 10.0, np.where(uid == 2, 1.0, 0.0))
    decides = np.isin(np.arange(9), (1, 3, 6))
    args = (jnp.asarray(x)[:, None] for x in (paid, uid, late, decides))
    reward, last = settled(*args)
    assert reward[:, 0].tolist() == [0, 3, 0, 22, 0, 0, 97, 0, 0]
    assert np.flatnonzero(last[:, 0]).tolist() == [3, 6]


def test_columns_that_do_not_fit_are_refused():
    assert algorithms.find("mappo").critic == "plain"
    assert algorithms.find("mappo", {"critic": "prefix", "fold": True}).fold
    for name, changes, said in (
        ("mappo", {"critic": "none"}, "critic: got 'none' with signal 'gae'"),
        ("grpo", {"critic": "prefix"}, "critic: got 'prefix' with signal 'life'"),
        ("mappo", {"fold": True}, "fold: got True with critic 'plain', allowed: critic prefix"),
        ("mappo", {"critic": "prefx"}, "unknown critic 'prefx'; did you mean prefix"),
        ("mappo", {"rows": 0}, "rows: got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            algorithms.find(name, changes)


# What a memory explains ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    """The first of eight choices decides everything, and later views do not show it."""
    options = {"topology": "single", "num_subtasks": SUBTASKS, "decisive": 1.0, "chances": (0.0, 1.0)}
    return control_env.make_env("Additive-v0", **options, observed_claims=1)


@pytest.fixture(scope="module")
def played(alone):
    policy = Told(control_env.alone(alone))

    @jax.jit
    def play(key):
        keys = group_keys(key, EPISODES, 1)
        args = alone, policy, policy.init(alone), *keys, TICKS, alone.params
        return collect(*args, signal="gae", trace=(False, TICKS))

    return play(jax.random.key(0)), play(jax.random.key(1))


@pytest.fixture(scope="module")
def fitted(alone, played):
    """{what the critic reads: its values of a batch of episodes}, after 150 steps on half of the episodes."""
    values = {}
    for reads in critics.READS:
        critic = Critic(alone, 16, reads, rows=TICKS, learning_rate=1e-2)

        @jax.jit
        def step(params, rule, data, critic=critic):
            learn = jnp.ones_like(data.decides)
            return critic.step(params, rule, data, learn, critics.to_go(data, learn), 1_024)[:2]

        @jax.jit
        def judge(params, data, critic=critic):
            return critic.values(params, data, jnp.ones_like(data.decides), 1_000)  # the last chunk is not full

        params = critic.init(0)
        rule = critic.rule.init(params)
        for _ in range(150):
            params, rule = step(params, rule, played[0])
        values[reads] = partial(judge, params)
    return values


@pytest.fixture(scope="module")
def paid(played):
    return critics.to_go(played[1], jnp.ones_like(played[1].decides))


def test_only_a_memory_of_the_trace_explains_an_outcome_that_an_unseen_event_decides(played, paid, fitted):
    test = played[1]
    first = np.asarray(test.turns)[0, :, 0, 1]
    assert (np.asarray(test.turns)[0, :, 0, 0] == WORK).all() and 40 < first.sum() < 88
    np.testing.assert_array_equal(paid[2, :, 0], first)  # the outcome is the first choice
    after = test.decides & (jnp.arange(TICKS)[:, None, None] > 0)
    assert after.sum() == EPISODES * (SUBTASKS + 1)
    share = {reads: float(critics.explained(judge(test), paid, after)) for reads, judge in fitted.items()}
    print(share)
    assert share["prefix"] >= 0.5 and share["plain"] <= 0.1


def test_a_value_knows_nothing_of_its_own_tick_and_after(played, fitted):
    """Before the first choice nothing is known of it; other traces from a tick on change no value up to it."""
    test, judge = played[1], fitted["prefix"]
    values = judge(test)
    assert np.ptp(values[0]) < 1e-5 and np.ptp(values[1]) > 0.5
    late = test.prefix.tick >= 5
    noise = jax.random.normal(jax.random.key(2), test.prefix.rows.shape)
    other = replace(test.prefix, rows=jnp.where(late[..., None], noise, test.prefix.rows))
    changed = judge(replace(test, prefix=other))
    np.testing.assert_array_equal(changed[:6], values[:6])
    assert np.abs(changed - values)[6:].max() > 0.01


def test_the_advantage_of_decay_one_is_what_is_paid_less_the_value(played, paid, fitted):
    test, value = played[1], fitted["prefix"](played[1])
    learn = jnp.ones_like(test.decides)
    judged, target = critics.judged(test, value, learn, 1.0)
    np.testing.assert_allclose(target, paid, atol=1e-5)
    np.testing.assert_allclose(judged.returns, jnp.where(test.decides, paid - value, 0), atol=1e-5)
    steps, _ = critics.judged(test, value, learn, 0.0)  # one step: the next value less this one
    np.testing.assert_allclose(steps.returns[2], value[3] - value[2], atol=1e-6)
    # So the first choice alone gets the credit, and right: its value before was a half.
    assert np.abs(steps.returns[2:8]).max() < 0.1
    np.testing.assert_allclose(np.abs(steps.returns[0]), 0.5, atol=0.15)


@pytest.fixture(scope="module")
def update(alone):
    row = algorithms.find("mappo", {"critic": "prefix", "rows": TICKS, "critic_rate": 3e-3})
    sizes = Sizes(groups=8, group_size=2, num_ticks=TICKS, chunk=256)
    return Update(alone, Network(alone, width=8), row, sizes, ("lead",), critic=critic_of(alone, row, 8))


def test_advantages_come_from_the_critic_before_its_own_steps(update, played):
    test, critic = played[1], update.critic
    learn = jnp.ones_like(test.decides)
    params = critic.init(3)
    params = params | {"out": {"kernel": params["out"]["kernel"], "bias": jnp.asarray([0.25])}}
    judged, (after, _), told = jax.jit(update.judge)((params, critic.rule.init(params)), test, learn)
    value = critic.values(params, test, learn, 256)
    expected, target = critics.judged(test, value, learn, 0.95)
    np.testing.assert_allclose(judged.returns, expected.returns, atol=1e-5)
    loss = 0.5 * np.mean(np.square(value - target)[np.asarray(test.decides)])
    np.testing.assert_allclose(told["value_loss"], loss, rtol=1e-4)
    assert abs(told["value_explained"]) < 0.05 and told["rows_dropped"] == 0  # nothing is known yet
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (after, params)), strict=True)]
    assert 1e-3 < max(moved) <= 5 * 3e-3 * 1.01  # five steps of Adam


def test_memory_of_an_update_grows_with_the_rows(update):
    half = dataclasses.replace(update, critic=dataclasses.replace(update.critic, rows=TICKS // 2))
    whole, less = (memory_bytes(each, 1) for each in (update, half))
    assert whole["traces"] == 2 * less["traces"] > 0 and whole["episodes"] > less["episodes"]


@pytest.mark.slow
def test_updates_of_the_row_mappo_teach_both_networks(alone, update):
    step, sizes = jax.jit(update), update.sizes
    params = update.network.init(alone)
    first = learner = start(params, sizes, update.critic)
    losses = []
    for _ in range(20):
        learner, told = step(learner, jax.random.key(0), params, alone.params)
        losses.append(float(told["value_loss"]))
        assert told["skipped"] == 0 and told["rows_dropped"] == 0 and told["value_explained"] <= 1
    assert np.isfinite(losses).all() and np.mean(losses[-5:]) < 0.8 * losses[0]
    for new, old in ((learner.params, first.params), (learner.critic[0], first.critic[0])):
        moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (new, old)), strict=True)]
        assert max(moved) > 1e-3 and np.isfinite(moved).all()


# Folding ------------------------------------------------------------------------------------------------------------


def test_ten_folded_branches_of_a_thousand_events(capsys):
    """A lead and ten workers of 98 calls each: the critic's rows, and the memory its step needs."""
    env = control_env.make_env("Additive-v0", agents=10, num_subtasks=10, decisions=98, max_ticks=110)
    policy = Told(control_env.team(env))
    play = jax.jit(lambda key: ddpomdp.rollout(env, policy, policy.init(env), key, 110).next_ts.events)
    log = jax.tree.map(lambda x: x[:, None], prefix.logged(play(jax.random.key(0))))
    num_uids, found = sum(env.spec.max_lives.values()), {}
    for fold in (False, True):
        traces = prefix.prefix_of(env, log, num_uids, fold=fold, rows=1_000)
        found[fold] = int((traces.tick < prefix.NEVER).sum())
        assert traces.dropped[0] == 0
        if fold:
            assert sum(column(env, traces, "kind_fold")) == 10  # branches
            np.testing.assert_allclose(max(column(env, traces, "events")), np.log(100), rtol=1e-6)  # of 99 events
    assert found[False] == int(log.chosen.sum()) >= 990 and found[True] <= 0.15 * found[False]

    memory = {}
    for fold, rows in found.items():
        critic = Critic(env, 32, "prefix", fold=fold, rows=rows)
        keys = group_keys(jax.random.key(0), 8, 1)
        play = partial(collect, env, policy, policy.init(env), num_ticks=110, env_params=env.params, signal="gae")
        data = jax.eval_shape(lambda *keys, f=fold, r=rows, p=play: p(*keys, trace=(f, r)), *keys)
        params = jax.eval_shape(critic.init)
        step = jax.jit(lambda params, data, c=critic: c.gradient(params, data, data.decides, data.returns, 256))
        memory[fold] = step.lower(params, data).compile().memory_analysis().temp_size_in_bytes
    with capsys.disabled():
        print(found, memory)
    assert memory[True] <= 0.25 * memory[False]


def whole_updates():
    """{folded: an update of row `mappo` on that trace, 8 episodes}, with as many rows as there are."""
    env = control_env.make_env("Additive-v0", agents=10, num_subtasks=10, decisions=98, max_ticks=110)
    network, sizes = Network(env, width=32), Sizes(groups=4, group_size=2, num_ticks=110, chunk=256)
    found = {}
    for fold, rows in ((False, 994), (True, 14)):  # as counted above
        row = algorithms.find("mappo", {"critic": "prefix", "rows": rows, "fold": fold})
        found[fold] = Update(env, network, row, sizes, env.spec.roles, critic=critic_of(env, row, 32))
    return found


def test_what_a_whole_update_needs_falls_with_folding():
    """The traces fall as their rows do, 994 to 14; the episodes by the rows that they carry, the rest not at all."""
    updates = whole_updates()
    whole, folded = (memory_bytes(update, 1) for update in updates.values())
    assert whole["traces"] == 71 * folded["traces"]  # 994 = 71 * 14
    assert whole["statistics"] == folded["statistics"] and whole["chunk"] == folded["chunk"]
    # Of each of the 980 rows more of 8 episodes: features (f32), and the tick of the row.
    rows = whole["episodes"] - folded["episodes"]
    assert rows == 8 * 980 * 4 * (len(prefix.features(updates[True].env)) + 1)
    assert sum(folded.values()) <= 0.25 * sum(whole.values())


@pytest.mark.slow
def test_the_memory_that_the_compiler_plans_for_a_whole_update_falls_with_folding(capsys):
    planned, told = {}, {}
    for fold, update in whole_updates().items():
        params = jax.eval_shape(lambda u=update: u.network.init(u.env))
        learner = jax.eval_shape(lambda u=update: start(u.network.init(u.env), u.sizes, u.critic))
        program = jax.jit(update).lower(learner, jax.random.key(0), params, update.env.params).compile()
        planned[fold], told[fold] = program.memory_analysis().temp_size_in_bytes, sum(memory_bytes(update, 1).values())
    with capsys.disabled():
        print(planned, told)
    assert planned[True] <= 0.3 * planned[False]
    for fold, size in planned.items():
        assert told[fold] == pytest.approx(size, rel=0.25)  # what is said before anything is compiled
