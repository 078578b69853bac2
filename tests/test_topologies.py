"""Topologies: who may say what to whom, which task works under which, and a debate."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import byvalue
from ddpomdp.harness import DELEGATE, GROUPS, MESSAGE, RETURN
from ddpomdp.options import UsageError
from ddpomdp.pytree import replace
from ddpomdp.rollouts import episodes
from ddpomdp.topology import TOPOLOGIES
from ddpomdp_envs.math import pass_rates

TASKS = ("Search-v0", "Math-v0", "DataScience-v0")
FITS = {  # the table of docs/architecture.md
    "single": TASKS,
    "swarm": TASKS,
    "centralized": TASKS,
    "managed": TASKS,
    "planner_executor_critic": ("Math-v0", "DataScience-v0"),
    "debate": ("Search-v0", "Math-v0"),
    "independent": ("Search-v0", "Math-v0"),
    "hierarchical": ("Search-v0",),
}


def make(task, topology, **options):
    return ddpomdp.make(task, preset="tiny", topology=topology, **options)


def test_which_fits_which_task():
    assert set(FITS) == set(TOPOLOGIES)
    for name, tasks in FITS.items():
        for task in TASKS:
            if task in tasks:
                assert dict(make(task, name).harness.topology)["name"] == name
            else:
                with pytest.raises(UsageError, match=f"topology: '{name}' does not fit .* allowed: single, swarm"):
                    make(task, name)


@pytest.mark.parametrize(
    "name, child, parent, again",
    [
        ("swarm", {"parent"}, {"children", "row"}, True),
        ("centralized", {"parent"}, {"children", "row"}, True),
        ("debate", {"parent", "peers"}, {"children", "row"}, True),
        ("managed", set(), {"children", "row"}, True),
        ("independent", set(), set(), False),
    ],
)
def test_who_may_say_what_to_whom(name, child, parent, again):
    """A lead with one idle child and one at work."""
    env = make("Search-v0", name, lead_blocks=False)
    state, _ = env.reset(jax.random.key(0))
    spawn = env.harness.turn("spawn", role="searcher", count=2, chunk=2, brief="detailed")
    state, _ = env.step(jax.random.key(1), state, jnp.zeros((4, len(spawn)), jnp.int32).at[0].set(spawn))
    back = jnp.zeros((4, len(spawn)), jnp.int32).at[1, 0].set(RETURN)
    state, _ = env.step(jax.random.key(1), state, back.at[0].set(env.harness.turn("wait", **{"for": "one"})))
    read = jnp.zeros((4, len(spawn)), jnp.int32).at[0].set(env.harness.turn("aggregate", rule="verdict"))
    step = lambda state: env.step(jax.random.key(1), state, read)  # noqa: E731
    state, ts = step(step(step(state)[0])[0])  # until the return is read
    words = lambda slot: {  # noqa: E731
        value.split("_")[0]
        for i, value in enumerate((*GROUPS, *(f"row_{r}" for r in range(4))))
        if int(ts.legal.whom[slot]) >> i & 1
    }
    may = lambda slot, tool: bool(int(ts.legal.tools[slot]) >> tool & 1)  # noqa: E731
    assert not bool(ts.blocked[0]) and int(state.lives.role[2]) == 1
    assert (words(2), words(0)) == (child, parent)
    assert (may(2, MESSAGE), may(0, MESSAGE), may(0, DELEGATE)) == (bool(child), bool(parent), again)


def test_centralized_offers_rules_that_heed_checks():
    for task, rules in (("Search-v0", ["verdict", "best"]), ("Math-v0", ["verdict", "best"]), ("DataScience-v0", None)):
        env = make(task, "centralized")
        (tool,) = (tool for tool in env.harness.tools if tool.name == "aggregate")
        assert [list(argument.values) for argument in tool.arguments] == ([rules] if rules else [])
        said = env.rules.rule(_call(env))
        assert env.rules.task.name == task and [int(x) for x in said] == ([1, 2] if rules else [2, 2])


def _call(env):
    """Calls of aggregate with the first two values of its rule."""
    return SimpleNamespace(tool=jnp.zeros(2, jnp.int32), args=[jnp.arange(2, dtype=jnp.int32)] * env.harness.num_args)


AGENTS, ROUNDS = 5, 4


@pytest.fixture(scope="module")
def debated():
    """Values int32[B, rounds + 1, agents] that debaters give, whether they are right, and claims heard int32[B]."""
    sizes = {"capacity": AGENTS + 1, "counts": (1, AGENTS), "chunks": (1, ROUNDS + 1), "wait_limit_ms": 10**8}
    env = make("Math-v0", "debate", **sizes)
    policy = ddpomdp.policy("debate", env, agents=AGENTS, rounds=ROUNDS)
    chance = 1 / (1 + np.exp(-pass_rates(0.6, 2.0)))
    always = {"loop": jnp.float32(0), "cap": jnp.full(3, 10**6, jnp.int32)}  # every sample has an answer
    task = replace(env.params.task, chance=jnp.asarray([chance] * 3, jnp.float32), **always)
    numbers = replace(env.params, task=task)

    @jax.jit
    def play(keys):
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        heard = lambda ts, turns, aux, next_ts: jnp.sum(next_ts.events.claims_received[:, 1:], axis=-1)  # noqa: E731
        batch = episodes(env, policy, policy.init(env), keys, luck, 32, numbers, heard)
        log = batch.state.log
        return jax.vmap(byvalue.value)(log), log.head >> 11, batch.state.task.truth, jnp.sum(batch.recorded, axis=0)

    def rounds(episodes):
        value, origin, truth, heard = map(np.asarray, play(jax.random.split(jax.random.key(4), episodes)))
        value, origin = (x.reshape(episodes, -1)[:, : AGENTS * (ROUNDS + 1)] for x in (value, origin))
        order = np.argsort(origin, axis=1, kind="stable")  # each debater's claims, in the order of their making
        assert (np.take_along_axis(origin, order, 1) == np.repeat(np.arange(1, AGENTS + 1), ROUNDS + 1)).all()
        value = np.take_along_axis(value, order, 1).reshape(episodes, AGENTS, ROUNDS + 1).swapaxes(1, 2)
        return value, value == truth.reshape(-1, 1, 1), heard

    return rounds


def agreement(value):
    """Mean share of debaters who hold the commonest value, by round."""
    return np.mean([[np.bincount(held).max() / AGENTS for held in rounds] for rounds in value], axis=0)


def test_debaters_hear_all_peers_in_every_round(debated):
    value, right, heard = debated(32)
    assert value.shape == right.shape == (32, ROUNDS + 1, AGENTS)
    assert (heard == AGENTS * (AGENTS - 1) * ROUNDS).all()
    assert 0.2 <= agreement(value).min() <= agreement(value).max() <= 1 and 0 < right.mean() < 1


@pytest.mark.slow
def test_debate_drifts_nowhere_while_agreement_rises(debated):
    """Design, 5 debaters, p ~ Beta of mean .6, answers only: mean .598 to .599, agreement .683 to .701."""
    value, right, _ = debated(8_192)
    mean, agree = right.mean((0, 2)), agreement(value)
    print("mean accuracy", mean.round(4), "agreement", agree.round(4))
    assert np.abs(mean - mean[0]).max() < 0.01
    assert agree[-1] > agree[0] + 0.01 and (np.diff(agree) > -0.005).all()
