"""C3: members of a group part at one decision to speak; what its credit and its three diagnostics say."""

import math

import jax
import numpy as np
import pytest

from ddpomdp.harness import SPAWN, STOP
from ddpomdp_baselines import algorithms, c3
from ddpomdp_baselines.learner import Sizes, Update, start
from ddpomdp_baselines.network import Network
from ddpomdp_envs import control_env

GROUPS, SIZE = 4, 4


class Open(Update):
    """An update that also says what it was learned from."""

    def credit(self, data, learns):
        advantage, weight, facts = super().credit(data, learns)
        return advantage, weight, {**facts, "data": data, "advantage": advantage, "learns": learns}


@pytest.fixture(scope="module")
def played():
    """Three updates from what workers say, each with what it was learned from; calls of tools are paid one by one."""
    env = control_env.make_env("Additive-v0", agents=2, num_subtasks=2, max_ticks=16, reward="tool")
    network = Network(env, width=8)
    sizes = Sizes(groups=GROUPS, group_size=SIZE, num_ticks=16, chunk=32, learning_rate=1e-2)
    update = Open(env, network, algorithms.find("c3"), sizes, ("worker",))
    fresh = network.init(env)  # a lead that spawns and does not stop, so that workers come to speak
    fresh = fresh | {"bias": fresh["bias"].at[0, STOP].add(-5.0).at[0, SPAWN].add(2.0)}
    one = jax.jit(lambda learner: update(learner, jax.random.key(0), learner.params, env.params))
    learner, seen = start(fresh, sizes), []
    for _ in range(3):
        before = learner
        learner, metrics = one(learner)
        metrics = jax.tree.map(np.asarray, metrics)
        parts = (metrics.pop(name) for name in ("data", "advantage", "learns"))
        seen.append((before.params, learner.params, metrics, *parts))
    return seen


@pytest.mark.slow
def test_members_share_everything_up_to_one_decision(played):
    parted = different = 0
    for *_, data, _, learns in played:
        assert (learns == data.forked).all()
        assert (data.forked.sum(axis=(0, 2)) <= 1).all()
        for group in range(GROUPS):
            mine = np.flatnonzero(data.group == group)
            forks = [np.argwhere(data.forked[:, b]) for b in mine]
            if not any(map(len, forks)):
                assert len({data.returns[:, b].tobytes() for b in mine}) == 1  # nobody spoke: all are alike
                continue
            (tick, slot), *rest = (fork[0] for fork in forks)
            assert all((fork == (tick, slot)).all() for fork in rest)
            parted += 1
            turns = data.turns[: tick + 1, mine].copy()
            own = turns[tick, :, slot].copy()
            turns[tick, :, slot] = 0
            assert (turns == turns[:, :1]).all()  # also what others do in that tick
            different += len(np.unique(own, axis=0)) > 1
            for other in range(1, SIZE):  # the same alternative meets the same luck
                if (own[other] == own[0]).all():
                    assert (data.returns[tick, mine[other], slot] == data.returns[tick, mine[0], slot]).all()
    assert parted >= 6 and different >= 4


@pytest.mark.slow
def test_credit_is_leave_one_out_among_alternatives(played):
    live = 0
    for *_, data, advantage, _ in played:
        advantage = advantage.reshape(data.forked.shape)
        assert (advantage[~data.forked] == 0).all()
        for group in range(GROUPS):
            tick, member, slot = np.nonzero(data.forked[:, data.group == group])
            if len(tick) == 0:
                continue
            value = data.returns[:, data.group == group][tick, member, slot]
            others = (value.sum() - value) / (SIZE - 1)
            np.testing.assert_allclose(advantage[:, data.group == group][tick, member, slot], value - others, atol=1e-6)
            live += np.ptp(value) > 0
    assert live >= 2


@pytest.mark.slow
def test_updates_are_finite_and_change_the_weights(played):
    moved = 0.0
    for before, after, metrics, *_ in played:
        assert metrics["skipped"] == 0 and np.isfinite(metrics["gradient_norm"])
        moved += sum(np.abs(a - b).sum() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True))
    assert moved > 0 and max(metrics["gradient_norm"] for _, _, metrics, *_ in played) > 0


@pytest.fixture(scope="module")
def found():
    env = control_env.make_env("Additive-v0", agents=2, num_subtasks=4)
    policy = control_env.team(env, speak=0.5)
    return c3.diagnose(env, policy, policy.init(env), jax.random.key(1), contexts=64, alternatives=4, replays=2)


@pytest.mark.slow
def test_fidelity_is_earned_and_not_by_construction(found):
    # Two turns, to speak or to be silent, are worth 2 x 0.25 x 1/2 apart on average: credit finds the better one, and
    # cannot be perfect, since what the worker has found differs from its mean and the target has luck of its own.
    assert found["contexts"] == 64 and 1.5 < found["distinct"] <= 2
    assert 0.5 < found["fidelity"] < 0.995
    assert found["variance"] > 1e-3
    assert abs(found["influence"]) < 1


def test_the_papers_fidelity_is_one_whatever_the_credit():
    """The trap: against the mean of the same alternatives leave-one-out is J / (J - 1) times its target."""
    noise = np.random.default_rng(0).normal(size=(50, 8))
    trap = noise - noise.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(c3.leave_one_out(noise), 8 / 7 * trap)
    assert c3.rank_correlation(c3.leave_one_out(noise).ravel(), trap.ravel()) == pytest.approx(1)
    fresh = np.random.default_rng(1).normal(size=(50, 8))
    held_out = fresh - np.random.default_rng(2).normal(size=(50, 1))
    assert abs(c3.rank_correlation(c3.leave_one_out(noise).ravel(), held_out.ravel())) < 0.15


def test_information_by_hand():
    # Rows (a a) and (b b), alpha 1: p(a|1) = 3/4, p(a|2) = 1/4, p(a) = 1/2.
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert c3.information(np.asarray([[1, 1], [2, 2]])) == pytest.approx(expected)
    assert c3.information(np.asarray([[1, 2], [2, 1]])) == pytest.approx(0)
    many = np.arange(200).reshape(2, 100)  # 64 of 200 actions are told apart
    assert 0 < c3.information(many) < math.log(2)


def test_the_row_and_its_column():
    row = algorithms.find("c3")
    assert (row.signal, row.center, row.scale) == ("counterfactual", "leave_one_out", "none")
    with pytest.raises(ValueError, match="unknown signal 'message'"):
        algorithms.find("c3", {"signal": "message"})
