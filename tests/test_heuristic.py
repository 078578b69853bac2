"""The tuned heuristic of Search-v0: the file belongs to these laws, it beats what it was tuned against, it says legal
lines only."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
import ddpomdp_envs
from ddpomdp.bench import episode
from ddpomdp.bench.stats import difference
from ddpomdp.options import UsageError
from ddpomdp_envs import tune_search
from ddpomdp_envs.search_env import PRESETS, tuned

MODELS = ("strong", "weak")
EPISODES = 256  # of every call: one compilation
FILE = Path(ddpomdp_envs.__file__).parent / "tuned" / "search.json"


@pytest.fixture(scope="module")
def envs():
    return tune_search.environments()


def played(envs, numbers, name, keys, **options):
    """Episodes with the numbers of a model; everything here runs in the one compiled environment."""
    env = envs["strong"]
    policy = ddpomdp.policy(name, env, **options)
    return episode.play(env, policy, policy.init(env), keys, envs[numbers].params, env.spec.max_ticks)


def calls(policy):
    return [policy.env.harness.to_json(line, [f"row_{i}" for i in range(8)]) for line in policy.lines]


def test_file_is_of_these_laws(envs):
    """A change of version, harness or grid needs a new search: `make policies`, or the command in the file."""
    env, file = envs["strong"], tuned()
    assert (file["env"], file["env_version"]) == (env.id, env.version)
    assert file["harness"] == env.harness.digest == envs["weak"].harness.digest
    assert {name: env.options[name] for name in tune_search.SETTING} == tune_search.SETTING
    assert {name: file[name] for name in tune_search.SETTING} == tune_search.SETTING
    assert file["grid"] == json.loads(
        json.dumps(
            {
                "points": len(tune_search.grid()),
                "teams": tune_search.TEAMS,
                "briefs": tune_search.BRIEFS,
                "plans": tune_search.PLANS,
            }
        )
    )
    seeds = file["seeds"]
    assert min(seeds["first_stage"] + seeds["second_stage"]) >= 10_000
    assert not set(seeds["first_stage"]) & set(seeds["second_stage"])
    assert sum(file["models"][model]["evaluations"] for model in MODELS) >= 500
    assert FILE.read_text(encoding="utf-8") == tune_search.text_of(json.loads(FILE.read_text(encoding="utf-8")))


@pytest.mark.parametrize("model", MODELS)
def test_file_replays(envs, model):
    """One seed of the second stage gives the reward in the file, so that changed numbers of the laws show."""
    entry = tuned()["models"][model]
    seed, reward = next(iter(entry["reward_by_seed"].items()))
    assert entry["episodes"] == EPISODES * len(entry["reward_by_seed"]) >= 1_000
    policy = ddpomdp.policy("heuristic", envs[model])
    assert policy.lines == ddpomdp.policy("swarm", envs[model], **entry["options"]).lines
    result = played(envs, model, "heuristic", jax.random.split(jax.random.key(int(seed)), EPISODES), model=model)
    assert np.asarray(result.reward, np.float64).mean() == pytest.approx(reward, abs=2e-6)
    assert entry["reward"] == max(entry["reward"], *(other["reward"] for other in entry["runners_up"]))


@pytest.mark.parametrize("model", MODELS)
def test_beats_single_and_the_default_swarm(envs, model):
    seeds = range(4)
    keys = jnp.concatenate([jax.random.split(jax.random.key(seed), EPISODES // len(seeds)) for seed in seeds])
    rewards = {}
    for name, options in (("heuristic", {"model": model}), ("single", {}), ("swarm", {})):
        result = played(envs, model, name, keys, **options)
        assert int(result.info["illegal"].sum()) == 0
        assert (int(result.info["births"].sum()) > 0) == (name != "single")
        assert np.all(np.asarray(result.stop_reason) == 1)  # stopped, not out of ticks
        rewards[name] = dict(zip(seeds, np.asarray(result.reward).reshape(len(seeds), -1).tolist(), strict=True))
    for other in ("single", "swarm"):
        gain = difference(rewards["heuristic"], rewards[other])
        assert gain["low"] > 0.02, (model, other, gain)


def test_search_is_deterministic(envs):
    """Twice the same bytes, the better point first, and each model's own numbers."""
    points = [{"n": 4, "brief": "short"}, {"n": 12, "brief": "detailed"}]
    effort = tune_search.Effort((10_000,), EPISODES, (10_001,), EPISODES, kept=2)
    words = []
    texts = [tune_search.text_of(tune_search.tune(points, effort, words.append)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(words) == 2 * 2 * (2 + 2)
    models = json.loads(texts[0])["models"]
    for model in MODELS:
        assert models[model]["options"] == points[1]
        assert models[model]["evaluations"] == 4
        assert [other["options"] for other in models[model]["runners_up"]] == [points[0]]
        assert models[model]["illegal"] == 0
    assert models["strong"]["reward"] > models["weak"]["reward"] + 0.2


def test_search_keeps_off_the_seeds_of_evaluation():
    for effort in (tune_search.Effort(first_seeds=(9,)), tune_search.Effort(first_seeds=(10_001,))):
        with pytest.raises(ValueError, match="none of 0 to 9"):
            tune_search.tune([{"n": 4}], effort)


def test_grid_is_legal_and_has_no_twins(envs):
    """Every point is a script, every script is another one, and all together take two compilations."""
    points = tune_search.grid()
    scripts = [ddpomdp.policy("swarm", envs["strong"], **point) for point in points]
    assert len({(script.lines, script.repeated) for script in scripts}) == len(points) >= 500
    assert {-(-len(script.lines) // script.PAD) for script in scripts} == {1, 2}


def test_lines_of_the_family(envs):
    env = envs["strong"]
    plain = [call["tool"] for call in calls(ddpomdp.policy("swarm", env))]
    assert plain == ["spawn", "wait", "aggregate", "stop"]
    spread = calls(ddpomdp.policy("swarm", env, n=15, spread=True))
    assert [(call["args"]["count"], call["args"]["chunk"]) for call in spread[:3]] == [(1, 4), (2, 4), (12, "even")]
    policy = ddpomdp.policy("swarm", env, n=11, lead_rows=4)
    assert [call["args"].get("count", call["tool"]) for call in calls(policy)[:3]] == [8, 2, 1]
    assert {call["args"]["chunk"] for call in calls(policy)[:3]} == {4}  # 44 rows of 48
    assert calls(policy)[3:5] == [{"tool": "wait", "args": {"for": "one"}}, {"tool": "search", "args": {}}]
    assert policy.repeated == (4,)
    rounds = calls(ddpomdp.policy("swarm", env, redundancy=2, rounds=["missing", "conflicting"], wait="half"))
    assert [call["args"]["rows"] for call in rounds if call["tool"] == "delegate"] == [
        "again",
        "missing",
        "conflicting",
    ]
    assert [call["args"]["for"] for call in rounds if call["tool"] == "wait"] == ["half", "half", "half", "all"]
    one = ddpomdp.policy("swarm", env, rounds="missing")
    assert one.lines == ddpomdp.policy("swarm", env, rounds=("missing",)).lines


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("preset", PRESETS)
def test_finds_a_team_in_every_preset(preset, model):
    """The tuned number of searchers or the nearest that fits, and every row in somebody's hands."""
    env = ddpomdp.make("Search-v0", preset=preset, model=model)
    spawns = [call["args"] for call in calls(ddpomdp.policy("heuristic", env)) if call["tool"] == "spawn"]
    born, left = sum(spawn["count"] for spawn in spawns), env.spec.num_subtasks
    for spawn in spawns:
        chunk = -(-left // spawn["count"]) if spawn["chunk"] == "even" else spawn["chunk"]
        left = max(0, left - chunk * spawn["count"])
    options = tuned()["models"][model]["options"]
    assert born == min(options["n"], env.spec.capacity - 1)
    assert left <= options.get("lead_rows", 0)


@pytest.mark.slow  # a compilation of its own
def test_is_legal_where_its_team_does_not_fit():
    env = ddpomdp.make("Search-v0", preset="tiny", model="weak")
    policy = ddpomdp.policy("heuristic", env)
    keys = jax.random.split(jax.random.key(0), 16)
    result = episode.play(env, policy, policy.init(env), keys, env.params, env.spec.max_ticks)
    assert int(result.info["illegal"].sum()) == 0
    assert np.all(np.asarray(result.stop_reason) == 1)
    assert np.all(np.asarray(result.info["births"]) >= 3)


def test_follows_the_model(envs):
    of = lambda env, **options: ddpomdp.policy("heuristic", env, **options).lines  # noqa: E731
    assert of(envs["weak"]) == of(envs["strong"], model="weak")
    assert of(envs["strong"]) == of(envs["weak"], model="strong")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("heuristic", {"model": "medium"}, "unknown model 'medium'.*strong, weak"),
        ("heuristic", {"n": 4}, "unknown option of policy heuristic 'n'.*model"),
        ("swarm", {"rounds": ["lost"]}, "unknown rounds 'lost'.*again, conflicting, missing, next"),
        ("swarm", {"wait": "none"}, "unknown wait 'none'.*all, half, one"),
        ("swarm", {"spread": 1}, "spread: got 1, allowed: True, False"),
        ("swarm", {"spread": True, "lead_rows": 4}, "spread: got True with lead_rows 4.*allowed with 0, even"),
        ("swarm", {"lead_rows": 48}, "lead_rows: got 48, allowed: whole numbers 0 to 47"),
        ("swarm", {"n": 5, "lead_rows": 4}, "n: 5.*no chunk in .* has 9 rows"),
    ],
)
def test_refuses_what_it_cannot_use(envs, name, options, message):
    with pytest.raises(UsageError if "unknown" in message else ValueError, match=message):
        ddpomdp.policy(name, envs["strong"], **options)


def test_needs_spawning():
    with pytest.raises(ValueError, match="topology 'single' has none"):
        ddpomdp.policy("heuristic", ddpomdp.make("Search-v0", topology="single"))
