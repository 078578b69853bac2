"""PettingZoo's views: the official checkers with births forced on, and what those checkers do not look at."""

import copy
import inspect
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest
from calls import bad_value, choose, same_episodes, tools_of
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test, max_cycles_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

import ddpomdp
from ddpomdp.enums import LifeEnd
from ddpomdp.harness import DESPAWN, SPAWN, WAIT
from ddpomdp.views import pettingzoo as views

ID = "Search-v0"
# One compilation serves all tests that are not slow. The budget of turns is one that some episodes use up.
OPTIONS = {"preset": "tiny", "max_ticks": 40, "max_turns": 45, "counts": (1, 2), "reward": "hybrid"}
FORMS = {
    "open": {},
    "open, mask in info": {"mask_in": "info"},
    "open, observations": {"obs_key": "observations"},
    "open, linger": {"linger": True},
    "fixed": {"population": "fixed"},
    "fixed, mask in info": {"population": "fixed", "mask_in": "info"},
}
# All else that the official checkers warn of is an error; of views without masks in the observation, all but the first.
NO_AGENTS = "No agents present but not all possible_agents"
official = [
    pytest.mark.filterwarnings(f"ignore:{NO_AGENTS}"),
    pytest.mark.filterwarnings("ignore:Observation space for each agent probably should be"),
    pytest.mark.filterwarnings("ignore:Observation is not a NumPy array"),
]


def parallel(**form):
    return ddpomdp.parallel_env(ID, **OPTIONS, **form)


def aec(**form):
    return ddpomdp.aec_env(ID, **OPTIONS, **form)


def mask_of(env, observations, infos, agent):
    told = observations[agent]
    return told["action_mask"] if isinstance(told, dict) else infos[agent]["action_mask"]


def episode(env, seed, rng, stop=0.05):
    """Play one episode; yields (actions, what step returned) per tick, after ((), what reset returned)."""
    observations, infos = env.reset(seed=seed)
    yield {}, (observations, {}, {}, {}, infos)
    while env.agents:
        actions = {agent: choose(rng, env, mask_of(env, observations, infos, agent), stop) for agent in env.agents}
        told = env.step(actions)
        observations, infos = told[0], told[4]
        yield actions, told


# The official checkers ----------------------------------------------------------------------------------------------


@pytest.fixture(params=FORMS)
def form(request):
    """Options of a view; where observations are arrays, warnings about them are errors too."""
    with warnings.catch_warnings():
        if FORMS[request.param].get("mask_in") == "info":
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", NO_AGENTS)
        yield FORMS[request.param]


class Churn:
    """Counts births and slots that are used twice, and narrows the root's mask so that both happen."""

    def __init__(self, monkeypatch):
        self.births = self.reused = 0
        admit, mask = views.Lives._admit, views.Lives._mask

        def counted(view, seen):
            before = dict(view._uids)
            admit(view, seen)
            newborn = set(view._uids) - set(before)
            self.births += len(newborn - {"lead_0"})
            used = {} if not before else view.used
            self.reused += sum(view._slot[name] in used for name in newborn)
            view.used = used | {view._slot[name]: True for name in newborn}

        def narrowed(view, slot):
            told = mask(view, slot)
            if slot != 0:
                return told
            tools = tools_of(view)
            spawns = np.flatnonzero(told * (tools == SPAWN))
            kept = told * ((tools == DESPAWN) | (tools == WAIT)).astype(np.int8)
            kept[spawns[:1]] = 1
            return kept

        monkeypatch.setattr(views.Lives, "_admit", counted)
        monkeypatch.setattr(views.Lives, "_mask", narrowed)


@pytest.fixture
def churn(monkeypatch):
    return Churn(monkeypatch)


class TestOfficial:
    pytestmark = official

    def test_parallel_api(self, form, churn):
        parallel_api_test(parallel(**form))
        if "population" not in form:
            assert churn.births > 0
            assert churn.reused > 0 or form.get("mask_in") == "info"  # there the checker samples without the mask

    def test_api(self, form, churn):
        api_test(aec(**form))
        if "population" not in form:
            assert churn.births > 0 and churn.reused > 0

    def test_seeds(self, form, churn):
        parallel_seed_test(lambda: parallel(**form))
        births = churn.births
        seed_test(lambda: aec(**form))
        if "population" not in form:
            assert 0 < births < churn.births

    def test_both_conversions_give_the_view_back(self):
        env = aec()
        assert isinstance(aec_to_parallel(env), views.Lives)
        parallel_api_test(aec_to_parallel(parallel_to_aec(parallel())))

    @pytest.mark.slow
    def test_max_cycles(self):
        def make(max_cycles):
            env = ddpomdp.parallel_env(ID, preset="tiny", max_ticks=max_cycles, population="fixed")
            env.action_space("slot_0").seed(0)  # the checker samples without the mask, and might stop
            return env

        max_cycles_test(SimpleNamespace(parallel_env=make, env=lambda max_cycles: parallel_to_aec(make(max_cycles))))


# Lives as agents ----------------------------------------------------------------------------------------------------


def test_lives_as_agents():
    """Newborns are in all five dicts, paid 0, and act next; names never return; slots do; last steps carry flags."""
    env, rng = parallel(), np.random.default_rng(0)
    possible = list(env.possible_agents)
    assert set(possible) == {"lead_0", *(f"{role}_{1 + i}" for role in ("searcher", "checker") for i in range(16))}
    births = deaths = reused = 0
    for seed in range(12):
        gone, agents, slots = set(), [], {}
        for actions, told in episode(env, seed, rng):
            assert all(list(d) == list(told[0]) for d in told[1:] if d)
            expected = [agent for agent in told[0] if not (actions and (told[2][agent] or told[3][agent]))]
            assert env.agents == expected and set(env.agents) <= set(possible)
            assert not gone & set(told[0])
            for agent in set(told[0]) - set(agents) if actions else ():
                births += 1
                assert agent in env.agents and told[1][agent] == 0.0
                assert told[2][agent] is False and told[3][agent] is False
                assert told[0][agent]["observation"].any()
                reused += env._slot[agent] in slots.values()
            slots |= {agent: env._slot[agent] for agent in env.agents}
            ended = {agent for agent in agents if told[2][agent] or told[3][agent]} if actions else set()
            for agent in ended:
                over = LifeEnd.EPISODE if not env.agents and told[4][agent]["life_end"] == 2 else LifeEnd.DESPAWNED
                assert told[4][agent]["life_end"] == over
                deaths += over == LifeEnd.DESPAWNED
            gone |= ended
            agents = list(env.agents)
        assert agents == []
        numbers = [int(agent.rsplit("_", 1)[1]) for agent in gone if agent.startswith("searcher")]
        assert sorted(numbers) == list(range(1, 1 + len(numbers)))  # per role, in order of birth
    assert env.possible_agents == possible
    assert births > 20 and deaths > 5 and reused > 5


def test_slots_as_agents():
    env, rng = parallel(population="fixed"), np.random.default_rng(0)
    assert env.possible_agents == [f"slot_{i}" for i in range(4)]
    alive, uid = env.feature_names.index("alive"), env.feature_names.index("uid")
    empty = ends = replaced = 0
    for seed in range(8):
        last = {}
        for _, told in episode(env, seed, rng):
            assert all(list(d) == env.possible_agents for d in told if d)
            for agent, seen in told[0].items():
                info, mask = told[4][agent], seen["action_mask"]
                row = seen["observation"]
                assert bool(row[alive]) == (info["uid"] >= 0 and info["life_end"] != LifeEnd.DESPAWNED)
                assert info["life_end"] == LifeEnd.DESPAWNED or row[uid] == info["uid"]
                if not row[alive]:
                    empty += 1
                    assert mask.sum() == 1 and mask[0] == 1
                ends += info["life_end"] == LifeEnd.DESPAWNED
                replaced += last.get(agent, -1) >= 0 and info["uid"] > last[agent]
                last[agent] = info["uid"] if info["uid"] >= 0 else last.get(agent, -1)
            assert len(set(told[2].values()) | set(told[3].values())) <= 2
            if told[2]:
                over = not env.agents
                assert all(told[2][a] + told[3][a] == over for a in told[2])
    assert empty > 0 and ends > 0 and replaced > 0


def test_every_end_and_its_last_observation():
    """Stopped, out of budget, at the horizon: flags per life, and last observations of lives cut in the middle."""
    env, rng = parallel(), np.random.default_rng(1)
    reasons, led = {}, 0
    for seed in range(40):
        quiet = seed % 4 == 1  # few turns: the horizon comes before the budget
        observations, infos = env.reset(seed=seed)
        while env.agents:
            before, actions = env._seen, {}
            for agent in env.agents:
                mask = observations[agent]["action_mask"]
                waits = quiet and (agent != "lead_0" or env._seen.tick > 1)
                actions[agent] = 0 if waits else choose(rng, env, mask, stop=0.1 if seed % 4 == 0 else 0.0)
            told = env.step(actions)
            observations, infos = told[0], told[4]
        reason = int(env._seen.stop_reason)
        reasons[reason] = reasons.get(reason, 0) + 1
        left = {agent for agent in told[0] if infos[agent]["life_end"] == LifeEnd.DESPAWNED}
        for agent in told[0]:
            flags = (told[2][agent], told[3][agent])
            true_end = agent in left or reason == 2 or (reason == 1 and agent == "lead_0")
            assert flags == (true_end, not true_end), (agent, reason, infos[agent], told[0][agent]["observation"][:8])
            row = dict(zip(env.feature_names, told[0][agent]["observation"].tolist(), strict=True))
            assert row["alive"] == (agent not in left) and row["uid"] == env.uid(agent)
            if agent == "lead_0":
                children = sorted(int(row[f"roster_{r}.uid"]) for r in range(4) if row[f"roster_{r}.uid"] >= 0)
                assert children == sorted(env.uid(a) for a in told[0] if a not in left and a != "lead_0")
                led += len(children)
            assert row["is_lead"] + row["is_searcher"] + row["is_checker"] == 1
            slot = int(np.flatnonzero(before.uid == env.uid(agent))[0])
            clock = env.feature_names.index("clock_min")
            assert row["clock_min"] >= before.observation[slot, clock] and np.isfinite(list(row.values())).all()
        with pytest.raises(ResetNeeded, match="ended"):
            env.step({})
    assert set(reasons) == {1, 2, 3} and led > 0, reasons


def test_late_reward_reaches_those_that_linger():
    """What one view reports as late, by uid, is what the other pays to those that stayed."""
    late = lingered = 0
    for seed in range(6):
        plain, lingering = parallel(), parallel(linger=True)
        paid, kept = {}, {}
        told, reported = lingering.reset(seed=seed)[0], 0.0
        for actions, step in episode(plain, seed, np.random.default_rng(seed)):
            if not actions:
                continue
            assert set(plain.possible_agents) >= set(lingering.agents) >= set(actions)
            if set(lingering.agents) - set(actions):
                lingered += 1
                assert all(told[a]["action_mask"].sum() == 1 for a in set(lingering.agents) - set(actions))
            other = lingering.step(actions | dict.fromkeys(set(lingering.agents) - set(actions), 0))
            told = other[0]
            for agent, reward in step[1].items():
                paid[agent] = paid.get(agent, 0.0) + reward
                assert data_equivalence(step[0][agent], told[agent], exact=True)
            for agent, reward in other[1].items():
                kept[agent] = kept.get(agent, 0.0) + reward
            reported += next(iter(step[4].values()))["late_reward"]
            assert all(info["ignored_calls"] == 0 for info in other[4].values())
            assert not any(f for a, f in other[2].items() if a not in step[0]) or not plain.agents
        assert lingering.agents == [] and set(kept) == set(paid)
        for agent, total in kept.items():
            assert total == pytest.approx(paid[agent] + plain.late_reward.get(plain.uid(agent), 0.0), abs=1e-6)
        assert reported == pytest.approx(sum(plain.late_reward.values()), abs=1e-6)
        late += sum(abs(value) > 1e-6 for value in plain.late_reward.values())
    assert late > 0 and lingered > 0


# Seeds --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", ["open", "fixed"])
def test_whole_episodes_repeat(population):
    assert same_episodes(episode, parallel(population=population), parallel(population=population), range(20)) is None


def turn_by_turn(env, seed, rng):
    """Play one episode; yields what is seen at every turn, and the action."""
    env.reset(seed=seed)
    for agent in env.agent_iter():
        told = env.last()
        over = told[2] or told[3]
        action = None if over else choose(rng, env.unwrapped, told[0]["action_mask"], stop=0.05)
        yield agent, told, action
        env.step(action)


def test_whole_episodes_repeat_turn_by_turn():
    one, two = aec(), aec()
    assert same_episodes(turn_by_turn, one, two, range(20)) is None
    two.unwrapped._ticks = copy.copy(one.unwrapped._ticks)
    step = one.unwrapped._ticks.step

    def unseeded(luck, state, turns):
        return step(luck if int(state.tick) < 1 else jax.random.key(9), state, turns)

    two.unwrapped._ticks.step = unseeded
    assert same_episodes(turn_by_turn, one, two, range(6)) is not None


def test_an_environment_random_from_its_second_step_is_caught():
    class Unseeded(views.Lives):
        def step(self, actions):
            if self._seen is not None and self._seen.tick == 1:
                self._luck = jax.random.key(np.random.default_rng().integers(2**31))
            return super().step(actions)

    broken = [parallel(), parallel()]
    for env in broken:
        env.__class__ = Unseeded
    assert same_episodes(episode, *broken, range(6)) is not None


def test_the_seed_in_the_info_repeats_an_episode():
    env = parallel()
    first = [env.reset(seed=7), env.reset(), env.reset()]
    again = [env.reset(seed=7), env.reset(), env.reset()]
    assert data_equivalence(first, again, exact=True)
    seeds = [infos["lead_0"]["seed"] for _, infos in first]
    assert seeds[0] == 7 and len(set(seeds)) == 3
    assert same_episodes(episode, env, parallel(), seeds[1:]) is None
    assert parallel().reset()[1]["lead_0"]["seed"] != parallel().reset()[1]["lead_0"]["seed"]
    for bad in (-1, 2**63, 1.5, "7", True, [7]):
        with pytest.raises(ValueError, match="seed: got"):
            env.reset(seed=bad)


# Calls --------------------------------------------------------------------------------------------------------------


def test_masks_are_exact_on_random_states():
    """Against the rule of the harness, call by call, for every slot: alive, blocked, idle, empty."""
    env, rng = parallel(population="fixed"), np.random.default_rng(2)
    harness, menu = env.env.harness, env.env.harness.menu
    rule = jax.jit(jax.vmap(harness.is_legal, in_axes=(None, 0)))
    every = jnp.broadcast_to(menu[:, None], (len(menu), 4, menu.shape[1]))
    states = free = 0
    for seed in range(10):
        for _, told in episode(env, seed, rng):
            expected = np.asarray(rule(env._state.legal, every))
            for slot, agent in enumerate(env.possible_agents):
                mask = told[0][agent]["action_mask"]
                assert mask.dtype == np.int8 and (mask == expected[:, slot]).all()
                free += mask.sum() > 1
            states += 1
    assert states > 100 and free > 100


@pytest.mark.parametrize("population", ["open", "fixed"])
def test_a_masked_call_becomes_wait_and_is_counted(population):
    env, rng = parallel(population=population), np.random.default_rng(3)
    root = env.possible_agents[0]
    observations, _ = env.reset(seed=0)
    masked = 0
    while env.agents:
        mask = observations[root]["action_mask"]
        others = {a: choose(rng, env, observations[a]["action_mask"]) for a in env.agents if a != root}
        bad = int(rng.choice(np.flatnonzero(mask == 0)))
        twin = copy.copy(env)
        twin._masked = dict(env._masked)
        if population == "open":
            twin._uids, twin._slot, twin._count = dict(env._uids), dict(env._slot), list(env._count)
        waited = twin.step({root: 0, **others})
        told = env.step({root: bad, **others})
        masked += 1
        assert told[4][root]["masked_calls"] == masked and waited[4][root]["masked_calls"] == masked - 1
        assert all(info["masked_calls"] == 0 for agent, info in told[4].items() if agent != root)
        different = play.differing(env._state, twin._state)
        assert set(different) <= {".lives.last_code", ".totals.illegal"}, different
        observations = told[0] if masked % 3 else waited[0]
        if masked % 3 == 0:
            break
    assert masked == 3


def test_calls_for_the_dead_are_ignored_and_counted():
    """Whatever they say, and the step is the same without them."""
    env, rng, ignored = parallel(), np.random.default_rng(4), 0
    observations, _ = env.reset(seed=3)
    for _ in range(8):
        calls = {agent: choose(rng, env, observations[agent]["action_mask"]) for agent in env.agents}
        dead = [agent for agent in env.possible_agents if agent not in env.agents][:3]
        alone, _ = env._ticks.step(env._luck, env._state, env_turns(env, env._state, calls))
        observations, *_, infos = env.step(calls | dict(zip(dead, (5, None, "nonsense"), strict=True)))
        ignored += 3
        assert all(info["ignored_calls"] == ignored for info in infos.values())
        assert play.differing(alone, env._state) == []
    assert len(env._uids) > 1 and ignored == 24

    env = parallel(population="fixed")
    env.reset(seed=0)
    assert env.step({"slot_0": 0, "slot_1": 0})[4]["slot_0"]["ignored_calls"] == 0  # what the mask leaves is no call
    assert env.step({"slot_0": 0, "slot_1": 3, "slot_2": "x"})[4]["slot_0"]["ignored_calls"] == 2


def env_turns(env, state, calls):
    turns = np.zeros((4, 1 + env.env.spec.num_args), np.int32)
    uid = np.asarray(state.lives.uid)
    for agent, action in calls.items():
        turns[np.flatnonzero(uid == env.uid(agent))[0]] = env.env.harness.menu[action]
    return turns


MANY = [3_000, pytest.param(50_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("calls_in_all", MANY)
def test_bad_calls_are_refused_by_name_and_change_nothing(calls_in_all):
    """In both populations, at several points of an episode."""
    rng, refused, kinds = np.random.default_rng(5), 0, {}
    for population in ("open", "fixed"):
        env = parallel(population=population)
        states = 0
        for _, told in episode(env, 11, np.random.default_rng(11), stop=0.0):
            if len(env.agents) < 2 or states == 5:
                continue
            states += 1
            alive = [a for a in env.agents if told[0][a]["observation"][0] > 0]
            size = env.action_space(alive[0]).n
            good = dict.fromkeys(env.agents, 0)
            before = dict(vars(env))
            frozen = copy.deepcopy({k: v for k, v in before.items() if k in ("agents", "_masked", "_ignored")})
            for _ in range(calls_in_all // 10):
                kind = rng.integers(5)
                victim = alive[rng.integers(len(alive))]
                calls = dict(good)
                if kind == 0:
                    name = [f"searcher_{rng.integers(17, 99)}", "slot_4", 3, None, "", ("lead_0",)][rng.integers(6)]
                    calls[name], said = 0, "unknown agent"
                elif kind == 1:
                    del calls[victim]
                    said = f"no call for .*{victim}"
                elif kind == 2:
                    calls, said = [[], None, "lead_0", 3, [("lead_0", 0)]][rng.integers(5)], "actions: got"
                else:
                    calls[victim], said = bad_value(rng, size)
                    said = f"action of {victim}: .*{said}"
                with pytest.raises(ValueError, match=said) as error:
                    env.step(calls)
                assert "\n" not in str(error.value) and len(str(error.value)) < 3_000
                refused += 1
                kinds[int(kind)] = kinds.get(int(kind), 0) + 1
            after = vars(env)
            assert after.keys() == before.keys() and all(after[k] is before[k] for k in before)
            assert all(after[k] == v for k, v in frozen.items())
        assert states == 5
    assert refused == calls_in_all and len(kinds) == 5


@pytest.mark.parametrize("calls_in_all", MANY)
def test_bad_calls_turn_by_turn_change_nothing(calls_in_all):
    """At every turn of an episode: the agent named, and everything as it was."""
    env, rng, refused, agents = aec(), np.random.default_rng(8), 0, set()
    env.reset(seed=12)
    size = env.action_space("lead_0").n
    while refused < calls_in_all:
        if not env.agents:
            env.reset(seed=int(rng.integers(100)))
        agent = env.agent_selection
        before = standing(env)
        for _ in range(40):
            action, said = bad_value(rng, size)
            if env.terminations[agent] or env.truncations[agent]:
                if action is None:
                    continue
                said = "must be None"
            with pytest.raises(ValueError, match=f"action of {agent}: .*{said}") as error:
                env.step(action)
            assert "\n" not in str(error.value)
            refused += 1
        assert data_equivalence(standing(env), before, exact=True)
        agents.add(agent)
        over = env.terminations[agent] or env.truncations[agent]
        env.step(None if over else choose(rng, env.unwrapped, env.observe(agent)["action_mask"], stop=0.05))
    assert len(agents) > 3


def standing(env):
    """Everything that a turn-by-turn view shows, and the tick it stands at."""
    shown = {name: copy.deepcopy(getattr(env, name)) for name in ("agents", "rewards", "terminations", "truncations")}
    return shown | {
        "selected": env.agent_selection,
        "infos": copy.deepcopy(env.infos),
        "paid": dict(env._cumulative_rewards),
        "seen": [env.observe(agent) for agent in env.agents],
        "tick": int(env.unwrapped._state.tick),
    }


def test_out_of_order():
    env = parallel()
    with pytest.raises(ResetNeeded, match="reset"):
        env.step({"lead_0": 0})
    with pytest.raises(ValueError, match=r"unknown agent 'lead_1'; did you mean lead_0"):
        env.action_space("lead_1")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="not born"):
        env.uid("searcher_1")
    assert env.render() is None and "lead_0: may act" in shown()
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step({})):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()


def shown():
    env = parallel(render_mode="ansi")
    env.reset(seed=0)
    return env.render()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"population": "opne"}, "unknown population 'opne'; did you mean open"),
        ({"actions": "text"}, "unknown actions 'text'"),
        ({"mask_in": "obs"}, "unknown mask_in 'obs'"),
        ({"obs_key": "obs"}, "unknown obs_key 'obs'"),
        ({"linger": 1}, "linger: got 1"),
        ({"linger": True, "population": "fixed"}, "linger: got True, allowed with population='open' only"),
        ({"render_mode": "human"}, "render_mode: got 'human'"),
        ({"max_tick": 3}, "unknown option of Search-v0 'max_tick'; did you mean max_ticks"),
        ({"preset": "calibration"}, r"at most 1024 are allowed: coarsen delegate\.to"),
    ],
)
def test_bad_arguments(options, said):
    for make in (ddpomdp.parallel_env, ddpomdp.aec_env):
        with pytest.raises(ValueError, match=said):
            make(ID, **options)


def test_what_is_handed_out_is_a_copy():
    env, twin = parallel(), parallel()
    kept, rng = [], np.random.default_rng(6)
    for actions, told in episode(env, 5, rng):
        expected = twin.step(actions) if actions else (*twin.reset(seed=5), None)
        assert data_equivalence(told[0], expected[0], exact=True)
        kept.append((told, copy.deepcopy(told)))
        assert all(data_equivalence(a, b, exact=True) for a, b in kept)
        for one in expected[0].values():
            for array in one.values():
                array[:] = -7  # the twin's arrays are scribbled over, and it plays on as if nothing had happened
    env = aec()
    env.reset(seed=0)
    env.last()[0]["observation"][:] = -7
    assert (env.last()[0]["observation"] != -7).all()


# Turn by turn -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", ["open", "fixed"])
def test_turn_by_turn_is_the_same_game(population):
    one, two = parallel(population=population), aec(population=population)
    ticks = 0
    for actions, told in episode(one, 9, np.random.default_rng(9), stop=0.0):
        if not actions:
            two.reset(seed=9)
            continue
        ticks += 1
        for _ in actions:
            agent = two.agent_selection
            if ticks % 5 == 1:
                state = (two.agent_selection, list(two.agents), dict(two.unwrapped._masked))
                with pytest.raises(ValueError, match=f"action of {agent}: got 10000"):
                    two.step(10_000)
                assert state == (two.agent_selection, list(two.agents), dict(two.unwrapped._masked))
            two.step(actions[agent])
        assert data_equivalence(two.rewards, told[1], exact=True) and data_equivalence(two.infos, told[4], exact=True)
        assert two.terminations == told[2] and two.truncations == told[3]
        for agent in list(two.agents):
            assert data_equivalence(two.observe(agent), told[0][agent], exact=True)
        while two.agents and (two.terminations[two.agent_selection] or two.truncations[two.agent_selection]):
            agent = two.agent_selection
            with pytest.raises(ValueError, match=f"action of {agent}: got 0, must be None"):
                two.step(0)
            two.step(None)
        assert two.agents == one.agents
    assert ticks > 5


# Spaces, compilation, tokens ----------------------------------------------------------------------------------------


def test_one_space_for_all_and_one_compilation():
    one, two = parallel(), parallel(mask_in="info")
    assert one._ticks is two._ticks and one._ticks is not None
    assert len({id(one.action_space(a)) for a in one.possible_agents}) == 1
    assert len({id(one.observation_space(a)) for a in one.possible_agents}) == 1
    assert one.action_space("lead_0") is not two.action_space("lead_0")  # seeding one leaves the other alone
    assert isinstance(one.action_space("lead_0"), spaces.Discrete)
    assert one.action_space("lead_0").n == one.env.spec.menu_size
    for _ in episode(one, 0, np.random.default_rng(0)):
        pass
    assert one._ticks.step._cache_size() == 1 and one._ticks.reset._cache_size() == 1
    assert one._ticks is not ddpomdp.parallel_env(ID, **OPTIONS | {"max_turns": None})._ticks
    assert inspect.signature(ddpomdp.aec_env).parameters.keys() == {"id", "options"}


def test_token_masks_hold_every_legal_turn():
    """Position by position: a token is allowed exactly where some legal turn has it."""
    env, rng = parallel(population="fixed"), np.random.default_rng(7)
    tokens, menu = views.program(views.Ticks, env.env, "tokens").actions, env.env.harness.menu
    masks, states = jax.jit(tokens.masks), 0
    for _, told in episode(env, 2, rng, stop=0.0):
        found = masks(env._state.legal)
        for slot, agent in enumerate(env.possible_agents):
            legal = menu[told[0][agent]["action_mask"] == 1]
            for position, mask in enumerate(found):
                expected = np.isin(np.arange(mask.shape[1]), legal[:, position])
                assert (np.asarray(mask[slot]) == expected).all(), (agent, position)
        states += 1
    assert states > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Observation", "ignore:Action", "ignore:No agents")
def test_tokens():
    options = {"preset": "tiny", "max_ticks": 40, "actions": "tokens"}
    env = ddpomdp.parallel_env(ID, **options)
    assert isinstance(env.action_space("lead_0"), spaces.MultiDiscrete)
    with warnings.catch_warnings(record=True):
        parallel_api_test(env)
        api_test(ddpomdp.aec_env(ID, **options))
        seed_test(lambda: ddpomdp.aec_env(ID, **options))
    observations, _ = env.reset(seed=0)
    bad = [0] * 5
    for value, said in (
        ([99, *bad[1:]], "tool: got 99"),
        ([0, -1, 0, 0, 0], "argument 1: got -1"),
        (3, "shape"),
        ([0.5] * 5, "dtype float"),
        ([[0], 1], "no array|shape|dtype"),
    ):
        with pytest.raises(ValueError, match=f"action of lead_0: {said}|action of lead_0.*{said}"):
            env.step({"lead_0": value})
    assert len(observations["lead_0"]["action_mask"]) == 1 + env.env.spec.num_args
