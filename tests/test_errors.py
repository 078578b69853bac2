"""Bad calls: a ValueError of one line that names what was got and what is allowed, and nothing is changed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ddpomdp
from ddpomdp import make, wrappers
from ddpomdp.params import RewardSpec

BAD_OPTIONS = [
    ({"preset": "smal"}, r"unknown preset 'smal'; did you mean small\? \(allowed: calibration, k2\.5"),
    ({"preset": None}, r"unknown preset 'None' \(allowed: calibration"),
    ({"topolgy": "swarm"}, r"unknown option of Search-v0 'topolgy'; did you mean topology\? \(allowed: capacity"),
    (
        {"topology": "swam"},
        r"unknown topology 'swam'; did you mean swarm\? \(allowed: centralized, debate, hierarchical",
    ),
    ({"topology": ["swarm"]}, r"unknown topology .*swarm.*allowed: centralized, debate"),
    ({"model": "strnog"}, r"unknown model 'strnog'; did you mean strong\? \(allowed: strong, weak\)"),
    ({"reward": "outcom"}, r"unknown reward 'outcom'; did you mean outcome\? \(allowed: debate"),
    ({"frozen_roles": ("searchr",)}, r"frozen_roles: got \('searchr',\), allowed: a list of searcher, checker"),
    ({"frozen_roles": "searcher"}, r"frozen_roles: got 'searcher', allowed"),
    ({"frozen_roles": ("lead",)}, r"frozen_roles: got \('lead',\), allowed"),
    ({"frozen_roles": None}, r"frozen_roles: got None, allowed"),
    ({"capacity": 0}, r"capacity: got 0, allowed: whole numbers 1 to"),
    ({"capacity": -1}, r"capacity: got -1, allowed"),
    ({"capacity": 4.0}, r"capacity: got 4\.0, allowed"),
    ({"capacity": True}, r"capacity: got True, allowed"),
    ({"capacity": "4"}, r"capacity: got '4', allowed"),
    ({"capacity": 10**9}, r"capacity: got 1000000000, allowed"),
    ({"num_subtasks": 0}, r"num_subtasks: got 0, allowed: whole numbers 1 to"),
    ({"max_ticks": 0}, r"max_ticks: got 0, allowed: whole numbers 1 to"),
    ({"max_turns": 0}, r"max_turns: got 0, allowed: whole numbers 1 to \d+ or None"),
    ({"max_tokens": -5}, r"max_tokens: got -5, allowed: .* or None"),
    ({"roster": 99}, r"roster: got 99, allowed: whole numbers 1 to 24"),
    ({"observed_claims": 0}, r"observed_claims: got 0, allowed"),
    ({"claims_per_row": 3}, r"claims_per_row: got 3, allowed: 1, 2, 4, 8, 16"),
    ({"poison": 1.5}, r"poison: got 1\.5, allowed: numbers 0 to 1"),
    ({"poison": float("nan")}, r"poison: got nan, allowed: numbers 0 to 1"),
    ({"unanswerable": "none"}, r"unanswerable: got 'none', allowed: numbers 0 to 1"),
    ({"price_token": float("inf")}, r"price_token: got inf, allowed"),
    ({"lead_blocks": 1}, r"lead_blocks: got 1, allowed: True, False"),
    ({"idle_ms": 0}, r"idle_ms: got 0, allowed: whole numbers 1 to"),
    ({"wait_limit_ms": 0}, r"wait_limit_ms: got 0, allowed"),
    ({"counts": ()}, r"counts: got \(\), allowed: distinct values of 1\.\."),
    ({"counts": (1, 1)}, r"counts: got \(1, 1\), allowed: distinct"),
    ({"counts": (0,)}, r"counts: got \(0,\), allowed"),
    ({"counts": 3}, r"counts: got 3, allowed"),
    ({"chunks": ("evn",)}, r"chunks: got \('evn',\), allowed: .*even"),
    ({"delegate_briefs": ("long",)}, r"delegate_briefs: got \('long',\), allowed: distinct values of short, standard"),
]


@pytest.mark.parametrize("options, said", BAD_OPTIONS, ids=[str(options)[:40] for options, _ in BAD_OPTIONS])
def test_options(options, said):
    with pytest.raises(ValueError, match=said) as error:
        make("Search-v0", **options)
    assert "\n" not in str(error.value)


BAD_IDS = [
    "Serch-v0",
    "",
    "os:system",
    "../Search-v0",
    "Search-v0\n",
    "Ѕearch-v0",
    "x" * 10_000,
    None,
    3,
    ["Search-v0"],
]


@pytest.mark.parametrize("name", BAD_IDS, ids=[repr(name)[:20] for name in BAD_IDS])
def test_unknown_environment(name):
    with pytest.raises(ValueError, match=r"unknown environment .*\(allowed: .*Search-v0") as error:
        make(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    if name == "Serch-v0":
        assert "did you mean Search-v0?" in str(error.value)


@pytest.fixture(scope="module")
def env():
    return make("Search-v0", preset="tiny")


def test_policies_and_roles(env):
    with pytest.raises(
        ValueError, match=r"policy of Search-v0 'singel'; did you mean single\? \(allowed: base, heuristic"
    ):
        ddpomdp.policy("singel", env)
    with pytest.raises(ValueError, match=r"unknown option of policy random 'n'"):
        ddpomdp.policy("random", env, n=3)
    with pytest.raises(ValueError, match=r"n: got 4, allowed: whole numbers 1 to 3"):
        ddpomdp.policy("swarm", env, n=4)
    with pytest.raises(ValueError, match=r"unknown rule 'most'.*allowed: best"):
        ddpomdp.policy("swarm", env, n=3, rule="most")
    with pytest.raises(ValueError, match=r"needs a topology with spawning"):
        ddpomdp.policy("swarm", make("Search-v0", preset="tiny", topology="single"))
    random = ddpomdp.policy("random", env)
    for parts in ({"lead": random}, {"lead": random, "searcher": random, "checker": random, "cook": random}):
        with pytest.raises(ValueError, match=r"the roles are lead, searcher, checker"):
            ddpomdp.by_role(parts)


def test_named_calls(env):
    turn = env.harness.turn
    with pytest.raises(ValueError, match=r"unknown tool 'fly'; tools: wait, spawn"):
        turn("fly")
    with pytest.raises(ValueError, match=r"spawn has no argument 'n'; arguments: role, count, chunk, brief"):
        turn("spawn", n=3)
    with pytest.raises(ValueError, match=r"spawn\.role: got 'cook', allowed: searcher, checker"):
        turn("spawn", role="cook")


BAD_TURNS = [
    (np.zeros((4, 4), np.int32), r"turns: shape \(4, 4\), must be \(4, 5\) \(slots, 1 \+ arguments\)"),
    (np.zeros((5, 5), np.int32), r"turns: shape \(5, 5\), must be \(4, 5\)"),
    (np.zeros(5, np.int32), r"turns: shape \(5,\), must be \(4, 5\)"),
    (np.zeros((1, 4, 5), np.int32), r"turns: shape \(1, 4, 5\), must be \(4, 5\)"),
    (np.zeros((4, 5), np.float32), r"turns: dtype float32, must be int32"),
    (np.full((4, 5), np.nan), r"turns: dtype float64, must be int32"),
    (np.zeros((4, 5), bool), r"turns: dtype bool, must be int32"),
    (np.full((4, 5), "stop"), r"turns: dtype <U4, must be int32"),
    (np.full((4, 5), None), r"turns: dtype object, must be int32"),
    (np.full((4, 5), 2**31, np.int64), r"turns: values 2147483648 to 2147483648 do not fit int32"),
    (np.full((4, 5), -(2**31) - 1, np.int64), r"turns: values .* do not fit int32"),
    ([[0, 0]], r"turns: shape \(1, 2\), must be \(4, 5\)"),
    (7, r"turns: shape \(\), must be \(4, 5\)"),
    (None, r"turns: shape \(\), must be \(4, 5\)"),
]


@pytest.mark.parametrize("turns, said", BAD_TURNS)
def test_turns(env, turns, said):
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    with pytest.raises(ValueError, match=said) as error:
        env.step(jax.random.key(0), state, turns)
    assert "\n" not in str(error.value)


def test_turns_in_compiled_code(env):
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    bad = jax.ShapeDtypeStruct((4, 4), jnp.int32)
    with pytest.raises(ValueError, match=r"turns: shape \(4, 4\)"):
        jax.eval_shape(env.step, jax.eval_shape(lambda: jax.random.key(0)), state, bad)
    bad = jax.ShapeDtypeStruct((4, 5), jnp.float32)
    with pytest.raises(ValueError, match=r"turns: dtype float32"):
        jax.eval_shape(env.step, jax.eval_shape(lambda: jax.random.key(0)), state, bad)


def test_rewards_and_wrappers(env):
    with pytest.raises(ValueError, match=r"unknown channel 'teem'; did you mean team\? .allowed: "):
        RewardSpec({"teem": 1.0})
    with pytest.raises(ValueError, match=r"num_envs: got 0, must be at least 1"):
        wrappers.Vector(env, 0)
    with pytest.raises(ValueError, match=r"autoreset: got 'always', allowed: same_step, next_step, off"):
        wrappers.Vector(env, 2, "always")
    with pytest.raises(AttributeError, match=r"has no attribute 'mak'"):
        ddpomdp.mak  # noqa: B018
