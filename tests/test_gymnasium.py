"""Gymnasium's views of the root: the official checker, and what it does not look at (decisions, ends, batches)."""

import copy
import dataclasses
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from calls import bad_value, choose, same_episodes
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

import ddpomdp
from ddpomdp.harness import SPAWN, STOP, WAIT
from ddpomdp.views import vector as vector_view

ID = "ddpomdp:ddpomdp/Search-v0"
# Two compilations serve all tests that are not slow: one episode, and a batch of BATCH.
OPTIONS = {"preset": "tiny", "max_ticks": 40, "max_turns": 30, "reward": "hybrid"}
BATCH = 5
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


@pytest.fixture(autouse=True, scope="module")
def fewer_at_once():
    """So few that an episode may have to wait for its turn within a step."""
    usual, vector_view.AT_ONCE = vector_view.AT_ONCE, 3
    yield
    vector_view.AT_ONCE = usual


def single(**form):
    return gymnasium.make(ID, **OPTIONS, **form).unwrapped


def vector(**form):
    return gymnasium.make_vec(ID, num_envs=BATCH, **OPTIONS, **form)


def episode(env, seed, rng, stop=0.05):
    """Play one episode; yields (action, what step returned) per step, after (None, what reset returned)."""
    observation, info = env.reset(seed=seed)
    yield None, (observation, 0.0, False, False, info)
    over = False
    while not over:
        action = choose(rng, env, env.action_masks(), stop)
        told = env.step(action)
        over = told[2] or told[3]
        yield action, told


# The official checker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"mask_in": "info"}, {"obs_key": "observations"}, {"every_tick": True}], ids=str)
def test_official(form):
    """Warnings are errors, those of the passive checker that `make` adds too."""
    check_env(single(**form))
    env = gymnasium.make(ID, **OPTIONS, **form)
    _, info = env.reset(seed=1)
    steps = 0
    for _ in range(60):
        mask = env.get_wrapper_attr("action_masks")()
        _, reward, terminated, truncated, info = env.step(env.action_space.sample(mask=mask))
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
        assert info["masked_calls"] == 0
        steps += 1
        if terminated or truncated:
            env.reset()
    assert steps == 60
    assert isinstance(env.action_space, spaces.Discrete)


def test_ids_are_registered_by_the_import_alone():
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "import ddpomdp, gymnasium\n"
        "spec = gymnasium.spec('ddpomdp/Search-v0')\n"
        "assert spec.vector_entry_point and not {'ddpomdp_envs', 'pettingzoo', 'ddpomdp.env'} & set(sys.modules)\n"
        "import importlib; importlib.reload(ddpomdp)\n"
        "print([name for name in gymnasium.registry if name.startswith('ddpomdp/')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str([f"ddpomdp/{name}" for name in ddpomdp.list_envs()])


# Decisions, ends, seeds ---------------------------------------------------------------------------------------------


def test_a_step_is_a_decision():
    """The same episode tick by tick and decision by decision: same decisions, same observations, same pay."""
    by_decision, by_tick = single(), single(every_tick=True)
    longest = steps = 0
    for seed in range(8):
        told = by_tick.reset(seed=seed)
        for action, step in episode(by_decision, seed, np.random.default_rng(seed)):
            if action is None:
                assert data_equivalence(told, (step[0], step[4]), exact=True)
                continue
            over, ticks, paid = step[2] or step[3], 0, 0.0
            while True:
                told = by_tick.step(action if ticks == 0 else 0)
                ticks, paid = ticks + 1, paid + np.float32(told[1])
                assert told[4]["ticks"] == 1
                if told[2] or told[3] or told[0]["action_mask"].sum() > 1:
                    break
                assert told[0]["action_mask"][0] == 1
            assert step[4] | {"ticks": 0} == told[4] | {"ticks": 0} and step[4]["ticks"] == ticks
            assert data_equivalence(step[0], told[0], exact=True) and paid == step[1]
            assert (step[2], step[3]) == (told[2], told[3])
            assert over or step[0]["action_mask"].sum() > 1
            longest, steps = max(longest, ticks), steps + 1
    assert longest > 3 and steps > 50


@pytest.mark.slow
def test_the_others_follow_the_worker_rule():
    """The team's view under the worker rule, tick by tick, is the orchestrator's view."""
    orchestrator, team = single(), ddpomdp.parallel_env("Search-v0", **OPTIONS)
    rule = jax.jit(lambda legal: team.env.rules.task.worker_turn(team.env.harness, legal))
    births = 0
    for seed in range(4):
        seen = team.reset(seed=seed)[0]["lead_0"]
        for action, step in episode(orchestrator, seed, np.random.default_rng(seed)):
            for tick in range(step[4]["ticks"]):
                turns = np.asarray(rule(team._state.legal))
                index = {
                    agent: team.env.harness.menu_index[tuple(turns[s].tolist())] for agent, s in team._slot.items()
                }
                told = team.step(index | {"lead_0": action if tick == 0 else 0})
                seen = told[0]["lead_0"]
            assert data_equivalence(seen, step[0], exact=True)
            births = max(births, step[4]["births"])
        assert team.agents == []
    assert births > 0


def test_every_end_and_its_last_observation():
    env, reasons, led = single(), {}, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        observation, _ = env.reset(seed=seed)
        over, menu = False, env.env.harness.menu[:, 0]
        while not over:
            mask = observation["action_mask"]
            if seed % 3 == 0:  # wait for the horizon, having spawned if that is possible
                spawns = np.flatnonzero(mask * (menu == SPAWN))
                action = int(spawns[0]) if spawns.size and int(env._state.tick) == 0 else 0
            else:
                action = choose(rng, env, mask, stop=0.2 if seed % 3 == 1 else 0.0)
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        reason = int(env._state.stop_reason)
        assert (terminated, truncated) == (reason != 3, reason == 3)
        reasons[reason] = reasons.get(reason, 0) + 1
        row = dict(zip(env.feature_names, observation["observation"].tolist(), strict=True))
        assert row["alive"] == 1 and row["uid"] == 0 and row["is_lead"] == 1
        assert row["clock_min"] == pytest.approx(info["wall_s"] / 60, rel=1e-5)
        children = [row[f"roster_{r}.uid"] for r in range(4) if row[f"roster_{r}.uid"] >= 0]
        led += len(children)
        assert observation["action_mask"].sum() == 1 and observation["action_mask"][0] == 1
        with pytest.raises(ResetNeeded, match="ended"):
            env.step(0)
    assert set(reasons) == {1, 2, 3} and led > 0, reasons


def test_whole_episodes_repeat():
    one, two = single(), single()
    assert same_episodes(episode, one, two, range(20)) is None
    first = [one.reset(seed=7), one.reset(), one.reset()]
    assert data_equivalence(first, [two.reset(seed=7), two.reset(), two.reset()], exact=True)
    seeds = [info["seed"] for _, info in first]
    assert seeds[0] == 7 and len(set(seeds)) == 3
    assert same_episodes(episode, one, two, seeds[1:]) is None
    step = two.step

    def unseeded(action):
        if int(two._state.tick) == 1:
            two._luck = jax.random.key(np.random.default_rng().integers(2**31))
        return step(action)

    two.step = unseeded
    assert same_episodes(episode, one, two, range(10)) is not None


# Calls --------------------------------------------------------------------------------------------------------------


MANY = [3_000, pytest.param(50_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("calls_in_all", MANY)
def test_bad_calls_are_refused_and_change_nothing(calls_in_all):
    """At several points of an episode, and after its end."""
    rng, env, refused = np.random.default_rng(0), single(), 0
    env.reset(seed=0)
    size = env.action_space.n
    for _ in range(10):
        before = dict(vars(env))
        for _ in range(calls_in_all // 10):
            action, said = bad_value(rng, size)
            with pytest.raises(ValueError, match=f"action of lead_0: .*{said}") as error:
                env.step(action)
            assert "\n" not in str(error.value)
            refused += 1
        assert vars(env).keys() == before.keys() and all(vars(env)[name] is value for name, value in before.items())
        env.step(choose(rng, env, env.action_masks()))
    assert refused == calls_in_all


@pytest.mark.parametrize("calls_in_all", MANY)
def test_bad_calls_of_a_batch_are_refused_and_change_nothing(calls_in_all):
    """The environment named, at several points."""
    rng, many, refused = np.random.default_rng(0), vector(), 0
    many.reset(seed=0)
    size = many.single_action_space.n
    for _ in range(10):
        before = dict(vars(many))
        for _ in range(calls_in_all // 10):
            actions, said = bad_batch(rng, size)
            with pytest.raises(ValueError, match=said) as error:
                many.step(actions)
            assert "\n" not in str(error.value)
            refused += 1
        assert vars(many).keys() == before.keys() and all(vars(many)[name] is value for name, value in before.items())
        many.step(np.asarray([choose(rng, many, mask) for mask in many.action_masks()]))
    assert refused == calls_in_all


def bad_batch(rng, size):
    """(actions, what the error must say)"""
    kind, index = rng.integers(5), rng.integers(BATCH)
    actions = np.zeros(BATCH, np.int64)
    if kind == 0:
        actions = actions.astype(rng.choice([np.int8, np.int64]))
        actions[index] = rng.choice([-1, -100])
        return actions, f"action of lead_0 in environment {index}: got -1"
    if kind == 1:
        actions[index] = rng.integers(size, 2**60)
        return actions, f"action of lead_0 in environment {index}: got .*allowed: 0 to {size - 1}"
    if kind == 2:
        return np.zeros((BATCH + int(rng.integers(1, 3)),), int), "actions of lead_0: shape"
    if kind == 3:
        return np.zeros(BATCH, rng.choice(["f4", "f8", "?", "U1", "O", "c8"])), "actions of lead_0: dtype"
    return bad_value(rng, size)[0], "actions? of lead_0"


def test_a_masked_call_becomes_wait_and_is_counted():
    one, two, masked = single(), single(), 0
    for seed in range(4):
        observation, _ = one.reset(seed=seed)
        two.reset(seed=seed)
        for n in range(1, 6):
            bad = int(np.flatnonzero(observation["action_mask"] == 0)[n])
            observation, *_, info = one.step(bad)
            waited = two.step(0)
            names = {name for name in info if info[name] != waited[-1][name]}
            assert info["masked_calls"] == n and waited[-1]["masked_calls"] == 0
            assert names == {"masked_calls", "illegal"}
            masked += 1
    assert masked == 20


def test_out_of_order():
    for env in (single(), vector()):
        with pytest.raises(ResetNeeded, match="reset"):
            env.step(0)
        with pytest.raises(ResetNeeded, match="reset"):
            env.action_masks()
        for bad in (-1, 2**63, 1.5, "7", True, {}):
            with pytest.raises(ValueError, match="seed: got"):
                env.reset(seed=bad)
        env.reset(seed=0)
        env.close()
        env.close()
        for call in (env.reset, lambda env=env: env.step(0), env.action_masks):
            with pytest.raises(ClosedEnvironmentError, match="closed"):
                call()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"actions": "text"}, "unknown actions 'text'"),
        ({"mask_in": "obs"}, "unknown mask_in 'obs'"),
        ({"every_tick": 1}, "every_tick: got 1"),
        ({"max_tick": 3}, "unknown option of Search-v0 'max_tick'; did you mean max_ticks"),
        ({"preset": "calibration"}, "at most 1024 are allowed: coarsen"),
    ],
)
def test_bad_arguments(options, said):
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(ValueError, match=said):
            make(ID, **options)
    with pytest.raises(ValueError, match="autoreset_mode: got 'Sometimes', allowed: NEXT_STEP, SAME_STEP, DISABLED"):
        gymnasium.make_vec(ID, autoreset_mode="Sometimes")
    with pytest.raises(ValueError, match="num_envs: got 0"):
        gymnasium.make_vec(ID, num_envs=0)


def test_what_is_handed_out_is_a_copy():
    env, twin, kept = single(), single(), []
    for action, told in episode(env, 5, np.random.default_rng(6)):
        expected = twin.reset(seed=5)[0] if action is None else twin.step(action)[0]
        assert data_equivalence(told[0], expected, exact=True)
        kept.append((told, copy.deepcopy(told)))
        assert all(data_equivalence(a, b, exact=True) for a, b in kept)
        for array in (*expected.values(), twin.action_masks()):
            array[:] = -7


# Batches ------------------------------------------------------------------------------------------------------------


def flat(infos):
    """Infos without the masks that Gymnasium writes for what is nested."""
    return {name: value for name, value in infos.items() if name not in ("final_info", "final_obs")}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_batch_is_its_episodes(mode):
    """Step by step what Gymnasium's own batch of single views gives, in every mode, resets and infos included."""
    ours = vector(autoreset_mode=mode)
    theirs = gymnasium.make_vec(ID, BATCH, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **OPTIONS)
    assert ours.metadata["autoreset_mode"] is mode and theirs.metadata["autoreset_mode"] is mode
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    rng, ends, dummies = np.random.default_rng(1), 0, 0
    seen, expected = ours.reset(seed=3), theirs.reset(seed=3)
    told, ended = (seen[0], None), np.zeros(BATCH, bool)
    assert data_equivalence(seen, expected, exact=True)
    for _ in range(80):
        mask = told[0]["action_mask"]
        actions = np.asarray([choose(rng, ours, row, stop=0.1) for row in mask])
        got, want = ours.step(actions), theirs.step(actions)
        told = got
        for a, b in zip(got[:4], want[:4], strict=True):
            assert data_equivalence(a, b, exact=True)
        assert data_equivalence(flat(got[4]), flat(want[4]), exact=True)
        if mode == AutoresetMode.NEXT_STEP:
            assert (got[1][ended] == 0).all() and not (got[2] | got[3])[ended].any()
            assert (got[4]["ticks"] == 0).tolist() == ended.tolist()
            dummies += ended.sum()
        ended = got[2] | got[3]
        ends += ended.sum()
        assert ("final_obs" in got[4]) == (mode == AutoresetMode.SAME_STEP and ended.any())
        if "final_obs" in got[4]:
            assert list(got[4]["_final_obs"]) == list(ended) == list(got[4]["_final_info"])
            for a, b in zip(got[4]["final_obs"], want[4]["final_obs"], strict=True):
                assert data_equivalence(a, b, exact=True)
            for name, value in want[4]["final_info"].items():
                assert data_equivalence(got[4]["final_info"][name], value, exact=True), name
        if mode == AutoresetMode.DISABLED and ended.any():
            with pytest.raises(ResetNeeded, match=f"environments \\[{np.flatnonzero(ended)[0]}"):
                ours.step(actions)
            reset = ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended.copy()})
            assert data_equivalence(reset[0], reset[1], exact=True)
            told = reset[0]
    assert ends > 5 and (dummies > 5 or mode != AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.name)
def test_whole_batches_repeat(mode):
    """Every step of many episodes; a batch whose luck changes after its second step is told apart."""
    one, two = vector(autoreset_mode=mode), vector(autoreset_mode=mode)
    ends, same = 0, []
    for spoilt in (False, True):
        rng = np.random.default_rng(4)
        told = [env.reset(seed=21) for env in (one, two)]
        same.append(data_equivalence(*told, exact=True))
        for n in range(60):
            if spoilt and n == 2:
                other = jax.random.split(jax.random.key(99), BATCH)
                two._episodes = dataclasses.replace(two._episodes, luck=other)
            actions = np.asarray([choose(rng, one, mask, stop=0.1) for mask in one.action_masks()])
            told = [env.step(actions.copy()) for env in (one, two)]
            ends += (told[0][2] | told[0][3]).sum()
            same[-1] &= data_equivalence(*told, exact=True)
    assert same == [True, False] and ends > 10


def test_resets_of_some_leave_the_others_alone():
    env = vector(autoreset_mode="DISABLED")
    with pytest.raises(ResetNeeded, match="first reset"):
        env.reset(options={"reset_mask": np.array([True] + [False] * (BATCH - 1))})
    env.reset(seed=[3, 1, 4, 1, 5])
    wait = np.zeros(BATCH, int)
    told = env.step(wait)
    mask = np.array([False, True, False, False, True])
    seen, infos = env.reset(seed=9, options={"reset_mask": mask})
    assert infos["seed"].tolist() == [0, 10, 0, 0, 13] and infos["_seed"].tolist() == mask.tolist()
    same = seen["observation"] == told[0]["observation"]
    assert same[~mask].all() and not same[mask].all()
    clock = env.feature_names.index("clock_min")
    assert (seen["observation"][mask, clock] == 0).all() and (seen["observation"][~mask, clock] > 0).all()
    assert env.step(wait)[4]["seed"].tolist() == [3, 10, 4, 1, 13]
    for bad, said in (
        ([True] * BATCH, "reset_mask: got list"),
        (np.ones(BATCH, int), "reset_mask: got int"),
        (np.ones(BATCH + 1, bool), "reset_mask: got bool"),
        (np.zeros(BATCH, bool), "reset_mask: all False"),
    ):
        with pytest.raises(ValueError, match=said):
            env.reset(options={"reset_mask": bad})
    with pytest.raises(ValueError, match="seed: got 2 of them, must be 5"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="seed of environment 1: got -1"):
        env.reset(seed=[0, -1, 0, 0, 0])


def test_batches_are_masked_counted_and_kept():
    """Masked calls per environment; arrays handed out are copies; Gymnasium's statistics wrapper works on them."""
    env = vector(autoreset_mode=AutoresetMode.SAME_STEP)
    menu = env.env.harness.menu[:, 0]
    stop, wait = int(np.flatnonzero(menu == STOP)[0]), int(np.flatnonzero(menu == WAIT)[0])
    first, _ = env.reset(seed=0)
    kept = copy.deepcopy(first)
    bad = int(np.flatnonzero(first["action_mask"][0] == 0)[0])
    told = env.step(np.asarray([bad, wait, bad, wait, stop]))
    assert told[4]["masked_calls"].tolist() == [1, 0, 1, 0, 0]
    assert (told[2] | told[3]).tolist() == [False, False, False, False, True]
    assert data_equivalence(first, kept, exact=True)
    told[0]["observation"][:] = -7
    env.action_masks()[:] = 0
    assert (env.action_masks().sum(axis=1) > 0).all()
    assert env.step(np.asarray([bad, wait, wait, wait, bad]))[4]["masked_calls"].tolist() == [2, 0, 1, 0, 1]

    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector(autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset(seed=0)
    lengths = []
    for n in range(1, 7):
        *_, infos = env.step(np.full(BATCH, stop if n % 3 == 0 else wait))
        lengths += infos["episode"]["l"].tolist() if "episode" in infos else []
    assert lengths == [3] * 2 * BATCH


def test_one_compilation():
    one, two, many = single(), single(mask_in="info", every_tick=True), vector(autoreset_mode="SameStep")
    assert one._program is two._program and one.action_space is not two.action_space
    many.reset(seed=0)
    for _ in range(3):
        many.step(np.zeros(BATCH, int))
    for program, names in ((one._program, ("one_reset", "one_step")), (many._batch, ("start", "step"))):
        assert {name: getattr(program, name)._cache_size() for name in names} == dict.fromkeys(names, 1)


@pytest.mark.slow
def test_tokens():
    options = {"preset": "tiny", "max_ticks": 40, "actions": "tokens", "mask_in": "info"}
    env = gymnasium.make(ID, **options).unwrapped
    check_env(env)
    many = gymnasium.make_vec(ID, num_envs=2, **options)
    observation, info = env.reset(seed=0)
    batch, infos = many.reset(seed=0)
    assert isinstance(env.action_space, spaces.MultiDiscrete)
    steps = 0
    for _ in range(10):
        mask = info["action_mask"]
        assert all((m == row[0]).all() for m, row in zip(mask, infos["action_mask"], strict=True))
        action = env.action_space.sample(mask=mask)
        observation, reward, terminated, truncated, info = env.step(action)
        batch, rewards, *_, infos = many.step(np.stack([action, np.zeros_like(action)]))
        assert rewards[0] == reward and (batch[0] == observation).all()
        steps += 1
        if terminated or truncated:
            break
    assert steps > 2
    for bad, said in (([99, 0, 0, 0, 0], "tool: got 99"), (3, "shape"), ([0.5] * 5, "dtype float")):
        with pytest.raises(ValueError, match=f"action of lead_0: {said}"):
            env.step(bad)
