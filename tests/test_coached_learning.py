"""Learners paid by a coach: after the episode, per action, in one place; rows `mappa` and `reinforce_pp`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import cli
from ddpomdp.coach import process, watch
from ddpomdp.harness import DELEGATE, STOP
from ddpomdp.options import UsageError
from ddpomdp.params import reward_spec
from ddpomdp.pytree import replace
from ddpomdp_baselines import algorithms
from ddpomdp_baselines.experience import collect, entries, group_keys, signal_of
from ddpomdp_baselines.learner import Sizes, Update
from ddpomdp_baselines.network import Network, view
from ddpomdp_baselines.train import planned
from ddpomdp_envs.datascience_coach import Rubric

GROUPS, SIZE, TICKS = 2, 2, 20
SIZES = Sizes(groups=GROUPS, group_size=SIZE, num_ticks=TICKS, chunk=64)


@pytest.fixture(scope="module")
def env():
    return ddpomdp.make("DataScience-v0", preset="tiny", reward="mappa")


@pytest.fixture(scope="module")
def update(env):
    row = algorithms.find("mappa", {"kl_weight": 0.5})
    return Update(env, Network(env, width=8), row, SIZES, env.spec.roles[1:], Rubric())


@pytest.fixture(scope="module")
def params(env, update):
    """Fresh weights of a busy lead: it seldom stops and often delegates."""
    fresh = update.network.init(env)
    return fresh | {"bias": fresh["bias"].at[0, STOP].add(-4.0).at[0, DELEGATE].add(2.0)}


@pytest.fixture(scope="module")
def play(env, update, params):
    """Episodes under given numbers of the environment, and the scores of the same episodes watched apart."""
    keys, luck, group = group_keys(jax.random.key(2), GROUPS, SIZE)

    def both(numbers):
        learned = collect(*(env, update.network, params, keys, luck, group, TICKS, numbers, "call"), update.coach)
        seen = jax.vmap(lambda key, luck: watch(env, update.network, params, key, TICKS, luck, numbers))(keys, luck)
        scores = jax.vmap(update.coach.score)(seen, jax.vmap(lambda key: jax.random.fold_in(key, 3))(luck))
        return learned, jnp.moveaxis(process(*scores), 0, 1)

    return jax.jit(both)


@pytest.fixture(scope="module")
def data(env, play):
    return play(env.params)[0]


def test_each_call_is_paid_what_the_coach_gives_it(env, play, data):
    paid = np.asarray(play(env.params)[1])
    decides = np.asarray(data.decides)
    assert decides.sum() > 20 and (paid[decides] > 0).sum() > 10
    np.testing.assert_array_equal(np.asarray(data.returns)[decides], paid[decides])
    assert not paid[np.asarray(data.role) == 0].any()  # the lead of a crew is not scored
    per_episode = paid.sum((0, 2)) / np.maximum((paid > 0).sum((0, 2)), 1)
    np.testing.assert_allclose(np.asarray(data.facts["process"]), per_episode, rtol=1e-6)


def test_signals_worked_by_hand():
    """A slot with two lives, paid 1 2 and 4 8, the first 16 late; then nobody."""
    column = lambda *x: jnp.asarray(x, jnp.float32)[:, None, None]  # noqa: E731
    paid, uid = column(1, 2, 4, 8, 0), jnp.asarray([3, 3, 5, 5, -1])[:, None, None]
    total, late = column(19, 19, 12, 12, 0), column(16, 16, 0, 0, 0)
    given = {name: signal_of(name, paid, uid, total, late).ravel().tolist() for name in ("life", "to_go", "call")}
    assert given["life"] == [19, 19, 12, 12, 0]
    assert given["to_go"][:4] == [19, 18, 12, 8]
    assert given["call"] == [1, 2, 4, 8, 0]
    with pytest.raises(UsageError, match="unknown signal 'lives'"):
        signal_of("lives", paid, uid, total, late)


def test_divergence_is_taken_off_the_call(update, params, data):
    everyone = jnp.ones_like(data.decides)
    same = jax.jit(update.penalised)(data, everyone, params)
    np.testing.assert_allclose(np.asarray(same.returns), np.asarray(data.returns), atol=1e-6)
    other = jax.tree.map(lambda x: x + 0.3, params)
    far = np.asarray(jax.jit(update.penalised)(data, everyone, other).returns)
    t, b, n = (int(x[7]) for x in np.nonzero(np.asarray(data.decides)))
    seen = jax.tree.map(lambda x: x[t, b], data.seen)
    reference = update.network.score(other, view(seen, jax.tree.map(lambda x: x[t, b], data.legal)), data.turns[t, b])
    k1 = np.where(np.asarray(reference.choice[n]), np.asarray(data.logp[t, b, n] - reference.logp[n]), 0.0).sum()
    assert abs(k1) > 0.01
    assert far[t, b, n] == pytest.approx(float(data.returns[t, b, n]) - 0.5 * k1, abs=1e-4)


def test_without_a_success_outcome_teaches_nothing_and_the_coach_does(update, play):
    """Every episode fails and costs nothing: the outcome is 0 throughout."""
    planted = ddpomdp.make("DataScience-v0", preset="tiny", planted=True, price_token=0.0, price_second=0.0).params
    found = {}
    for reward in ("outcome", "mappa"):
        data, _ = play(replace(planted, weights=reward_spec(reward).arrays()))
        assert not np.asarray(data.facts["quality"]).any()
        advantage, _, _ = update.credit(data, jnp.ones_like(data.decides))
        found[reward] = np.asarray(advantage)[np.asarray(entries(data.decides))]
    assert not found["outcome"].any()
    assert np.abs(found["mappa"]).mean() > 0.1


def test_rows_of_the_table():
    mappa, plus = algorithms.find("mappa"), algorithms.find("reinforce_pp")
    assert (mappa.signal, mappa.center_scope, mappa.per_role, mappa.lead) == ("call", "agent", True, False)
    assert (plus.signal, plus.center_scope, plus.kl_where) == ("to_go", "batch", "reward")
    assert not mappa.looks_at_groups() and not plus.looks_at_groups()  # one sample per task is enough
    plan = planned("DataScience-v0", "mappa", {"preset": "tiny"}, {"coach": {"accuracy": 0.5}}, 0, 1, 1, 0, "random")
    assert plan.update.learns == ("engineer", "modeler", "analyst") and plan.update.network.per_role
    assert plan.update.coach == Rubric(accuracy=0.5) and plan.update.env.options["reward"] == "mappa"


@pytest.mark.parametrize(
    "words, said",
    [
        (("mappa", "Chain-v0"), "Chain-v0 has no coach, so channel 'process' cannot be paid"),
        (("dr_mas", "Chain-v0", "env.reward=hybrid"), "Chain-v0 has no coach"),
        (
            ("mappa", "DataScience-v0", "coach.acuracy=1"),
            "unknown option of the coach 'acuracy'; did you mean accuracy?",
        ),
        (("mappa", "DataScience-v0", "coach.accuracy=2"), "accuracy: got 2, allowed: 0 to 1"),
        (("dr_mas", "DataScience-v0", "coach.accuracy=1"), "coach: channel 'process' has no weight"),
        (("mappa", "DataScience-v0", "coach=1"), "coach: got 1"),
        (("mappa", "DataScience-v0", "signal=lives"), "unknown signal 'lives'"),
    ],
)
def test_what_cannot_be_coached_is_refused(words, said, capsys):
    assert cli.main(["train", *words, "init=random"]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
