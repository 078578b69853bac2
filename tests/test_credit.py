"""Credit against the truth, in a control world: a lead and three workers at two subtasks each.

All tests share one environment, whose chances and weights are numbers: three programs are compiled.
"""

import json
import math
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import CreditUnit as Unit
from ddpomdp import EventKind, credit
from ddpomdp.cli import main
from ddpomdp.credit import signal, table
from ddpomdp.credit.assign import counterfactual
from ddpomdp.credit.plays import away, player
from ddpomdp.harness import RETURN
from ddpomdp.pytree import replace
from ddpomdp_envs import control_env, control_exact
from ddpomdp_envs.control import WORK

DOCS = Path(__file__).parent.parent / "docs" / "credit.md"
SEED = 1  # an episode in which all three workers bring different weights
EPISODES = 768
OPTIONS = {"agents": 3, "num_subtasks": 6}


def numbers(**options):
    """Numbers of another world of the same shape, by its options."""
    return control_env.make_env("Additive-v0", **OPTIONS, **options).params


@pytest.fixture(scope="module")
def env():
    return control_env.make_env("Additive-v0", **OPTIONS)


@pytest.fixture(scope="module")
def team(env):
    policy = control_env.team(env)
    return policy, policy.init(env)


@pytest.fixture(scope="module")
def record(env, team):
    """Rollouts by seed and numbers."""
    policy, params = team
    play = jax.jit(lambda key, more: ddpomdp.rollout(env, policy, params, key, env.spec.max_ticks, env_params=more))
    return lambda seed, more: play(jax.random.key(seed), more)


@pytest.fixture(scope="module")
def give(env, team, record):
    """Credit of the episode of a seed."""
    policy, params = team

    def assign(unit, estimator, seed=0, more=None, **options):
        more = env.params if more is None else more
        case = {"policy": policy, "params": params, "key": jax.random.key(seed), "env_params": more}
        return credit.assign(env, record(seed, more), unit=unit, estimator=estimator, **case | options)

    return assign


def keyed(seed, count):
    keys = jax.random.split(jax.random.key(seed), count)
    return keys, jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)


# The table ----------------------------------------------------------------------------------------------------------


def test_the_table_stands_in_the_docs():
    assert table.markdown() in DOCS.read_text(encoding="utf-8")
    assert sum(len(row.units) for row in table.ESTIMATORS.values()) == 45


@pytest.mark.slow
def test_every_cell_of_the_table_exists(give):
    hybrid = numbers(reward="hybrid")
    cells = 0
    for name, row in table.ESTIMATORS.items():
        for unit in Unit:
            value_fn = (lambda ts: 0.25 * ts.alive) if name == "critic" else None
            if unit not in row.units:
                with pytest.raises(ValueError, match=f"{name!r} does not exist at CreditUnit.{unit.name}; allowed: "):
                    give(unit, name)
                continue
            cells += 1
            if not row.branches or unit in (Unit.AGENT, Unit.TURN):  # coarser ones are tested below
                given = give(unit, name, more=hybrid, value_fn=value_fn)
                assert given.value.shape == (*given.ids.shape, 4) and len(given.units) == given.ids.max() + 1 > 0
                assert (given.value[given.ids < 0] == 0).all()
    assert cells == 45


def test_conservative_estimators_agree_along_the_lattice_and_others_print_their_residual(give):
    lattice = (Unit.TEAM, Unit.ROLE, Unit.AGENT, Unit.TURN)
    hybrid = numbers(reward="hybrid", chances=(0.9, 1.0))
    for unit in lattice:
        shared, process = give(unit, "shared"), give(unit, "process", more=hybrid)
        assert shared.residual == 0 and shared.units.mean() == shared.total > 0
        assert process.residual == pytest.approx(0, abs=1e-6) and process.total > 0.3
    agents, turns = (give(unit, "process", more=hybrid) for unit in (Unit.AGENT, Unit.TURN))
    for life in range(4):  # a life's credit is the sum of its turns'
        mine = turns.units[turns.ids[agents.ids == life]]
        assert agents.units[life] == pytest.approx(mine.sum()) and len(mine) > 2
    parts = [give(unit, "process", more=hybrid).units.sum() for unit in (Unit.MESSAGE, Unit.TOOL_CALL)]
    assert min(parts) > 0 and sum(parts) == pytest.approx(turns.units.sum())  # nothing else was paid
    given = give(Unit.TURN, "return_to_go")
    assert given.residual == pytest.approx(given.total - given.units.sum()) and abs(given.residual) > 0.1


@pytest.mark.slow
def test_shapley_sums_to_the_return_and_branching_estimators_print_their_residual(give):
    for unit in (Unit.TEAM, Unit.ROLE, Unit.AGENT):
        shapley = give(unit, "shapley")
        assert shapley.residual == pytest.approx(0, abs=1e-9) and shapley.total == give(unit, "shared").total
    for name in ("counterfactual", "removal"):
        given = give(Unit.TURN, name)
        assert given.residual == pytest.approx(given.total - given.units.sum()) and abs(given.residual) > 0.1


def test_return_to_go_and_critic_by_hand(give, record, env):
    hybrid = numbers(reward="hybrid")
    to_go = give(Unit.TURN, "return_to_go", more=hybrid)
    episode = record(0, hybrid)
    reward, uid = np.asarray(episode.next_ts.reward), np.asarray(episode.next_ts.events.uid)
    t, n = np.argwhere(to_go.ids >= 0)[5]
    assert uid[t, n] > 0
    expected = reward[t:][uid[t:] == uid[t, n]].sum()
    assert to_go.units[to_go.ids[t, n]] == pytest.approx(expected, abs=1e-6) and expected > 0
    critic = give(Unit.TOKEN, "critic", more=hybrid, value_fn=lambda ts: 0.25 + 0 * ts.alive)
    np.testing.assert_allclose(critic.units, to_go.units - 0.25)
    work = (critic.ids >= 0) & (np.asarray(episode.turns)[..., 0] == WORK)
    assert (critic.value[work][:, :2] != 0).any() and (critic.value[work][:, 2:] == 0).all()  # tool and choice


# Exact values --------------------------------------------------------------------------------------------------------


def test_shapley_equals_brute_force_on_a_team_of_four(give, record):
    weights = numbers(decisive=0.3, chances=(0.9, 0.9))
    episode = record(SEED, weights)
    events = jax.tree.map(np.asarray, episode.next_ts.events)
    # By hand: nothing without the lead; else the weights of the right subtasks of the workers who are there.
    truth, answer = np.asarray(episode.state.task.truth), np.asarray(episode.state.answer)
    gain = ((answer >> truth) & 1) * np.asarray(weights.task.weights)
    brings = {0: 0.0} | {uid: gain[2 * (uid - 1) : 2 * uid].sum() for uid in (1, 2, 3)}
    worth = lambda some: sum(brings[i] for i in some) if 0 in some else 0.0  # noqa: E731
    assert sorted(set(events.uid.ravel())) == [-1, 0, 1, 2, 3] and len(set(brings.values())) == 4
    expected = []
    for i in range(4):
        others = [j for j in range(4) if j != i]
        expected.append(
            sum(
                math.factorial(size) * math.factorial(3 - size) / 24 * (worth({*some, i}) - worth(some))
                for size in range(4)
                for some in combinations(others, size)
            )
        )
    given = give(Unit.AGENT, "shapley", seed=SEED, more=weights)
    np.testing.assert_allclose(given.units, expected, atol=1e-6)
    sampled = give(Unit.AGENT, "shapley", seed=SEED, more=weights, samples=400)
    assert sampled.residual == pytest.approx(0, abs=1e-9) and (sampled.stderr.max() > 0)
    np.testing.assert_allclose(sampled.units, expected, atol=0.06)
    roles, removal = (
        give(Unit.ROLE, "shapley", seed=SEED, more=weights),
        give(Unit.AGENT, "removal", seed=SEED, more=weights),
    )
    np.testing.assert_allclose(roles.units, [expected[0], sum(expected[1:])], atol=1e-6)
    np.testing.assert_allclose(removal.units, [gain.sum(), *(brings[i] for i in (1, 2, 3))], atol=1e-6)


def test_a_decision_without_consequences_is_worth_exactly_nothing(give, env, team):
    policy, params = team
    for chances, matters in (((0.5, 0.5), False), ((0.0, 1.0), True)):
        given = give(Unit.TOOL_CALL, "counterfactual", more=numbers(chances=chances))
        assert len(given.units) == 6 and bool(np.any(given.units)) == matters and bool(np.any(given.stderr)) == matters
    more = {"decision": "tool", "unit": Unit.TURN, "episodes": 64, "env_params": numbers(chances=(0.5, 0.5))}
    for name in ("shared", "counterfactual"):
        measured = credit.snr(env, policy, params, jax.random.key(1), estimator=name, **more)
        assert measured["delta"] == measured["stderr"] == measured["rho"] == measured["d"] == 0 and measured["n"] == 64
        assert (measured["sigma"] > 0) == (name == "shared")


def test_snr_hits_the_closed_form(env, team):
    policy, params = team
    exact = control_exact.signal_to_noise(env)
    case = {"decision": "tool", "unit": Unit.TURN, "episodes": EPISODES, "samples": 4}
    found = {
        name: credit.snr(env, policy, params, jax.random.key(3), estimator=name, **case) for name in signal.MEASURED
    }
    for name, measured in found.items():
        assert abs(measured["delta"] - exact["delta"]) < 3 * measured["stderr"] < 0.02
        assert measured["n"] == EPISODES and abs(measured["p"] - 0.5) < 0.04 and measured["coupling"] == 0
        assert measured["z_all"] <= measured["z_one"], name
    assert found["shared"]["sigma"] == pytest.approx(exact["sigma"], rel=0.08)
    assert abs(found["shared"]["rho"] - exact["rho"]) < 0.05
    assert found["leave_one_out"]["sigma"] == pytest.approx(exact["sigma"] * math.sqrt(1 + 1 / 4), rel=0.08)
    assert found["counterfactual"]["d"] > 3 * found["shared"]["d"]  # common luck
    assert (
        found["shared"]["z_all"]
        == found["shared"]["z_one"]
        == pytest.approx(0.5 * found["shared"]["d"] * math.sqrt(EPISODES))
    )


# Controls -----------------------------------------------------------------------------------------------------------


def messages(env, team, seed, count, more):
    """(absolute credit f64[B, 3], slot int[B, 3]) of the three returns of each of many episodes."""
    policy, _ = team
    params = control_env.team(env, speak=0.5).init(env)
    plays = player(env, policy, params, more)
    keys, luck = keyed(seed, count)
    played = plays.ordinary(keys, luck)
    episode, tick, slot = np.nonzero(played.decides & (played.kind == EventKind.RETURN))
    assert len(episode) == 3 * count
    moment = plays.advance(keys[episode], luck[episode], tick)
    turn = played.tokens[episode, tick, slot]
    worth = counterfactual(plays, moment, luck[episode], slot, turn, played.returns[episode], 8, False)
    return np.abs(worth.value).reshape(count, 3), slot.reshape(count, 3)


def test_a_planted_decisive_message_ranks_first_and_equals_rank_evenly(env, team):
    worth, slot = messages(env, team, 5, 100, numbers(decisive=0.8, chances=(1.0, 1.0)))
    first = slot[np.arange(100), np.argmax(worth, axis=1)]
    decisive = (first == 1).sum()  # slot 1 was handed the first two subtasks
    print(f"{decisive} of 100")
    assert decisive >= 95
    worth, slot = messages(env, team, 6, 200, numbers(chances=(1.0, 1.0)))
    best = worth == worth.max(axis=1, keepdims=True)
    share = (best / best.sum(axis=1, keepdims=True)).sum(axis=0)  # ties are shared out
    assert ((share - 200 / 3) ** 2 / (200 / 3)).sum() < 13.8, share  # chi-square, two degrees of freedom, 0.1%


def test_permuted_rewards_leave_no_estimator_above_chance(env, team):
    """Correlation of the credit of the middle choice with what it is worth, over episodes."""
    policy, params = team
    plays = player(env, policy, params, numbers(chances=(0.0, 1.0)))
    contexts = signal.Contexts(plays, *keyed(7, EPISODES), "tool", False)
    truth = contexts.turn[:, 1] - 0.5  # the better choice is 1
    bound = 3.3 / EPISODES**0.5  # 0.1%
    returns, shuffle = contexts.returns, np.random.default_rng(0).permutation(EPISODES)
    for name in signal.MEASURED:
        contexts.returns = returns
        honest = np.corrcoef(signal._credits(contexts, name, 4, False)[0], truth)[0, 1]
        contexts.returns = returns[shuffle]
        if name in ("counterfactual", "removal"):  # what they compare with is permuted too
            other = contexts.play(contexts.other if name == "counterfactual" else np.zeros_like(contexts.turn)).returns
            permuted = np.corrcoef(contexts.returns - other[shuffle], truth)[0, 1]
        else:
            permuted = np.corrcoef(signal._credits(contexts, name, 4, False)[0], truth)[0, 1]
        print(f"{name}: {honest:.3f}, permuted {permuted:.3f}")
        assert honest > 2 * bound and abs(permuted) < bound, name


@pytest.mark.slow
def test_permuted_rewards_leave_shapley_at_chance(give, record):
    """Correlation of a worker's credit with how often it chose right, over workers of many episodes."""
    more, episodes = numbers(chances=(0.0, 1.0)), 64
    credits, right = np.zeros((2, episodes, 3))
    for i in range(episodes):
        credits[i] = give(Unit.AGENT, "shapley", seed=100 + i, more=more).units[1:]
        events = jax.tree.map(np.asarray, record(100 + i, more).next_ts.events)
        calls = [(events.kind == EventKind.TOOL) & (events.uid == uid) for uid in (1, 2, 3)]
        right[i] = [events.tokens[mine][:, 1].sum() for mine in calls]
    shuffle, bound = np.random.default_rng(0).permutation(episodes), 3.3 / credits.size**0.5
    honest, permuted = (np.corrcoef(x.ravel(), right.ravel())[0, 1] for x in (credits, credits[shuffle]))
    print(f"shapley: {honest:.3f}, permuted {permuted:.3f}")
    assert honest > 2 * bound and abs(permuted) < bound and right.std() > 0.5


@pytest.fixture(scope="module")
def studies(env, team):
    """Standard studies of a worker's first choice right after the spawn: (mean, stderr) for many keys."""
    policy, params = team
    plays = player(env, policy, params)
    moment = plays.advance(*keyed(8, 1), np.asarray([1])).at(np.int32(0))
    turn = jnp.asarray(env.harness.turn("work", choice=1))
    one = lambda key: credit.expected_return(  # noqa: E731
        env, moment.state, 2, turn, policy, params, key, 64, memory=moment.memory, num_ticks=9
    )
    return jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=20))


@pytest.mark.slow
def test_nominal_intervals_cover_the_exact_value(env, studies):
    exact = control_exact.expected_return(env, choice=1)
    mean, stderr = (np.asarray(x, np.float64) for x in studies(jax.random.split(jax.random.key(9), 1_000)))
    covered = (np.abs(mean - exact) <= 1.9983 * stderr).sum()  # Student's t, 63 degrees of freedom
    print(f"{covered} of 1,000 intervals cover {exact:.4f}; mean of means {mean.mean():.4f}")
    assert 930 <= covered <= 970


@pytest.mark.parametrize("name", ["Additive-v0", "Search-v0", "Math-v0", "DataScience-v0"])
def test_an_absent_life_has_something_to_say_in_every_task(name):
    """Levels of detail have other names in other tasks."""
    world = ddpomdp.make(name)
    tool = world.harness.tools[RETURN]
    claims, detail = (argument.values[token] for argument, token in zip(tool.arguments, away(world)[1:], strict=False))
    assert (tool.name, claims) == ("return", "new") and detail == tool.arguments[1].values[0]


# The command line and refusals --------------------------------------------------------------------------------------


def test_the_command_says_what_a_spawn_was_worth(env, team, monkeypatch, capsys):
    monkeypatch.setattr(ddpomdp, "make", lambda name, **options: env)
    monkeypatch.setattr(ddpomdp, "policy", lambda name, env: team[0])
    monkeypatch.setattr("ddpomdp.registry.policy_names", lambda name: ["random", "team"])
    assert main(["credit", "Additive-v0", "--decision", "spawn", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["turn"] == {"tool": "spawn", "args": {"role": "worker", "count": 3}} and said["policy"] == "team"
    low, high = said["interval"]
    assert said["without"] == 0 and low < said["worth"] < high and said["worth"] == said["with"]
    assert abs(said["worth"] - 0.5) < 2 * (high - low)  # without workers nothing is reported
    assert main(["credit", "Additive-v0", "--decision", "aggregate"]) == 0
    assert "return with wait instead" in capsys.readouterr().out
    for words, code_says in (
        (["--decision", "spwn"], "unknown decision 'spwn'; did you mean spawn?"),
        (["--decision", "spawn", "--nth", "4"], "nth 4: this episode has 1 spawn decisions"),
        (["--decision", "spawn", "--samples", "1"], "samples 1; allowed: integers from 2 to 1000000"),
    ):
        assert main(["credit", "Additive-v0", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and code_says in lines[0]


def test_refusals(give, env, team, record):
    policy, params = team
    with pytest.raises(ValueError, match="unknown estimator 'shaply'; did you mean shapley"):
        give(Unit.AGENT, "shaply")
    with pytest.raises(ValueError, match=r"unit: got 'turn', allowed: CreditUnit.TEAM"):
        give("turn", "shared")
    with pytest.raises(ValueError, match="needs policy, params and key"):
        give(Unit.TURN, "counterfactual", key=None)
    with pytest.raises(ValueError, match="do not repeat it"):
        give(Unit.TURN, "removal", key=jax.random.key(1))
    with pytest.raises(ValueError, match="channels beside team"):
        give(Unit.TURN, "process")
    with pytest.raises(ValueError, match="value_fn: estimator 'critic' needs one"):
        give(Unit.TURN, "critic")
    whole = record(0, env.params)
    cut = replace(
        whole, ts=jax.tree.map(lambda x: x[:4], whole.ts), next_ts=jax.tree.map(lambda x: x[:4], whole.next_ts)
    )
    with pytest.raises(ValueError, match="has not ended after 4 ticks"):
        credit.assign(env, cut, unit=Unit.TEAM, estimator="shared")
    batch = jax.tree.map(lambda x: x[None], whole)
    with pytest.raises(ValueError, match=r"must be \(ticks, slots\)"):
        credit.assign(env, batch, unit=Unit.TEAM, estimator="shared")
    with pytest.raises(ValueError, match="unknown estimator of snr 'shapley'"):
        credit.snr(env, policy, params, jax.random.key(0), decision=1, unit=Unit.AGENT, estimator="shapley", episodes=8)
    with pytest.raises(ValueError, match="no delegate decision in 8 episodes"):
        credit.snr(env, policy, params, jax.random.key(0), decision=2, unit=Unit.TURN, estimator="shared", episodes=8)
