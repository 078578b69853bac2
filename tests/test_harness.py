"""The grammar of turns: tokens, menu and JSON are three spellings of the same calls; masks agree with the rules."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest

from ddpomdp import make, policy
from ddpomdp.harness import BOUNDS, CORE_TOOLS, Legal

ENVS = {
    "tiny": {"preset": "tiny"},
    "small": {"preset": "small"},
    "hierarchical": {"preset": "small", "topology": "hierarchical"},
    "single": {"preset": "small", "topology": "single"},
    "crew": {"env_id": "Math-v0", "preset": "small"},
}
# The menu of `small`: what learners' logits mean. A change needs a new version of the environment.
SMALL_MENU = (214, "de26d788923f0f820bae0ab8f6213cf9c0d644f0d6d75a446efd44934a383868")


@pytest.fixture(scope="module", params=ENVS)
def env(request):
    return make(**{"env_id": "Search-v0"} | ENVS[request.param])


def roster_of(env):
    return [f"searcher_{i + 1}" for i in range(env.spec.roster)]


def test_round_trip_over_the_whole_menu(env):
    harness, roster = env.harness, roster_of(env)
    menu = harness.menu
    assert menu.dtype == np.int32 and menu.shape == (env.spec.menu_size, 1 + env.spec.num_args)
    assert len(harness.menu_index) == len(menu)  # no call twice
    spelled = set()
    for index, call in enumerate(menu):
        text = harness.to_json(call, roster)
        assert set(text) == {"tool", "args"} and not any(str(v).startswith("row_") for v in text["args"].values())
        spelled.add(repr(text))
        again = harness.from_json(text, roster)
        assert again.dtype == np.int32 and tuple(again) == tuple(call)
        assert harness.menu_index[tuple(again.tolist())] == index
    assert len(spelled) == len(menu)
    offered = {env.spec.tools[tool] for tool in menu[:, 0]}
    unusable = {"single": {"spawn", "delegate", "despawn"}, "planner_executor_critic": {"spawn", "despawn"}}
    missing = unusable.get(env.options["topology"], set())
    assert offered == set(env.spec.tools) - missing and env.spec.tools[:8] == CORE_TOOLS


def test_the_menu_is_complete_and_ordered(env):
    """Counted from the tools alone: every combination of values, in lexicographic order."""
    menu = [tuple(int(x) for x in call) for call in env.harness.menu]
    assert menu == sorted(menu)
    size = 0
    for tool in env.harness.tools:
        calls = 1
        for argument in tool.arguments:
            calls *= len(argument.values)
        size += calls
    assert size == len(menu) == env.spec.menu_size
    assert max(max(call) for call in menu) < env.spec.vocabulary


def test_the_menu_of_small_is_pinned():
    menu = make("Search-v0").harness.menu
    assert len(menu) <= 256
    assert (len(menu), hashlib.sha256(menu.astype("<i4").tobytes()).hexdigest()) == SMALL_MENU


def test_the_digest_names_the_harness():
    one = make("Search-v0").harness
    assert one.digest == make("Search-v0", preset="small").harness.digest and len(one.digest) == 16
    others = [
        {"topology": "hierarchical"},
        {"capacity": 15},
        {"counts": (1, 2)},
        {"lead_blocks": False},
        {"max_turns": 9},
        {"wait_limit_ms": 1},
    ]
    digests = {make("Search-v0", **options).harness.digest for options in others}
    assert len(digests | {one.digest}) == len(others) + 1


def random_legal(env, rng, rows=256):
    """Legality as agents could meet it: any tools with `wait`, any addressees, any bounds."""
    tools, arguments = env.harness.tools, {}
    for tool in tools:
        for argument in tool.arguments:
            arguments.setdefault(argument.bound, []).append(len(argument.values))
    bounds = np.stack([rng.integers(0, 1 + min(arguments.get(name, [0])), rows) for name in BOUNDS], axis=-1)
    bounds[:, 0] = np.maximum(bounds[:, 0], 1)
    whom = rng.integers(0, 2 ** len(tools[CORE_TOOLS.index("message")].arguments[0].values), rows)
    whom[: rows // 4] = 0
    bits = rng.integers(0, 2 ** len(tools), rows) | 1
    # No tool without a legal value.
    for index, tool in enumerate(tools):
        for argument in tool.arguments:
            empty = whom == 0 if argument.bits else np.zeros(rows, bool)
            if argument.bound is not None:
                empty = bounds[:, BOUNDS.index(argument.bound)] == 0
            bits = np.where(empty, bits & ~(1 << index), bits)
    return Legal(*(jnp.asarray(x, jnp.int32) for x in (bits, whom, bounds)))


def slow_is_legal(env, tools, whom, bounds, turn):
    """The rule, spelled out for one turn."""
    harness = env.harness
    if not 0 <= turn[0] < len(harness.tools) or not (tools >> turn[0]) & 1:
        return False
    arguments = harness.tools[turn[0]].arguments
    for position, token in enumerate(turn[1:]):
        if position >= len(arguments):
            if token != 0:
                return False
            continue
        argument = arguments[position]
        if not 0 <= token < len(argument.values):
            return False
        if argument.bits and not (whom >> token) & 1:
            return False
        if argument.bound is not None and token >= bounds[BOUNDS.index(argument.bound)]:
            return False
    return True


def test_masks_agree_with_the_rule(env):
    """is_legal, menu_mask, legal_count, legal_tokens and sampling, against the rule spelled out."""
    harness, rng = env.harness, np.random.default_rng(0)
    legal = random_legal(env, rng)
    rows = len(legal.tools)
    plain = [np.asarray(x) for x in (legal.tools, legal.whom, legal.bounds)]
    menu = harness.menu
    expected = np.asarray([[slow_is_legal(env, *(x[r] for x in plain), call) for call in menu] for r in range(rows)])
    assert 0.05 < expected.mean() < 0.9 and (expected.sum(-1) > 0).all()
    each = jax.jit(jax.vmap(lambda call: harness.is_legal(legal, jnp.broadcast_to(call, (rows, call.shape[0])))))
    assert (expected == np.asarray(each(jnp.asarray(menu))).T).all()
    assert (np.asarray(harness.menu_mask(legal)) == expected).all()
    assert (np.asarray(harness.legal_count(legal)) == expected.sum(-1)).all()
    # legal_tokens: a token is legal at a position if some legal call goes on with it.
    for position in range(1 + env.spec.num_args):
        for r in rng.permutation(rows)[:12]:
            for prefix in np.unique(menu[expected[r]][:, :position], axis=0):
                turn = np.zeros((rows, 1 + env.spec.num_args), np.int32)
                turn[r, :position] = prefix
                mask = np.asarray(harness.legal_tokens(legal, jnp.asarray(turn), position))
                assert mask.shape == (rows, env.spec.vocabulary)
                go_on = menu[expected[r] & (menu[:, :position] == prefix).all(-1)]
                assert set(np.flatnonzero(mask[r])) == set(go_on[:, position].tolist())


def test_tokens_the_grammar_does_not_have(env):
    """is_legal on menu calls with one position changed to anything, against the rule spelled out."""
    harness, rng = env.harness, np.random.default_rng(3)
    legal = random_legal(env, rng, rows=4_000)
    turns = harness.menu[rng.integers(0, env.spec.menu_size, 4_000)].copy()
    near = rng.integers(-2, env.spec.vocabulary + 2, 4_000)
    far = rng.choice([-(2**31), 2**31 - 1, 31, 32, 1 << 20], 4_000)
    position = rng.integers(0, turns.shape[1], 4_000)
    turns[np.arange(4_000), position] = np.where(rng.random(4_000) < 0.8, near, far)
    plain = [np.asarray(x) for x in (legal.tools, legal.whom, legal.bounds)]
    expected = np.asarray([slow_is_legal(env, *(x[r] for x in plain), turn) for r, turn in enumerate(turns.tolist())])
    assert expected.sum() > 100
    assert all((~expected[position == p]).sum() > 100 for p in range(turns.shape[1]))
    assert (expected == np.asarray(jax.jit(harness.is_legal)(legal, jnp.asarray(turns)))).all()


def test_sampled_turns_are_legal_and_reach_every_call(env):
    harness = env.harness
    legal = random_legal(env, np.random.default_rng(1))
    rows = len(legal.tools)

    @jax.jit
    def many(key):
        words = jax.random.bits(key, (400, 1 + env.spec.num_args, rows), jnp.uint32)
        turns = jax.lax.map(lambda w: harness.sample(list(w), legal), words)
        return turns, jax.lax.map(lambda t: harness.is_legal(legal, t), turns)

    turns, ok = many(jax.random.key(0))
    assert ok.size > 100_000 and ok.all()
    reached = {tuple(t) for t in np.unique(np.asarray(turns).reshape(-1, turns.shape[-1]), axis=0).tolist()}
    assert reached == set(harness.menu_index)


def test_sampling_is_uniform_position_by_position():
    env = make("Search-v0", preset="tiny")
    legal = random_legal(env, np.random.default_rng(2), rows=4)
    words = jax.random.bits(jax.random.key(1), (1 + env.spec.num_args, 20_000, 4), jnp.uint32)
    tools = jax.vmap(lambda w: env.harness.sample(list(w), legal), in_axes=1)(words)[..., 0]
    for row in range(4):
        allowed = [t for t in range(len(env.spec.tools)) if (int(legal.tools[row]) >> t) & 1]
        share = np.bincount(np.asarray(tools[:, row]), minlength=len(env.spec.tools)) / 20_000
        np.testing.assert_allclose(share[allowed], 1 / len(allowed), atol=0.02)


def test_legality_of_real_play_is_well_formed():
    """No tool is offered without a legal value for each argument; counts agree with the menu's mask."""
    run = play.Run(play.game(shape="narrow"))
    harness, noise, decisions = run.env.harness, jax.random.key(4), 0
    mask, count = jax.jit(harness.menu_mask), jax.jit(harness.legal_count)
    while not run.ts.last:
        expected = np.asarray(mask(run.ts.legal)).sum(-1)
        counts = np.asarray(count(run.ts.legal))
        assert (counts == expected).all() and (counts >= 1).all()
        turns = np.array(run.game.sample(jax.random.fold_in(noise, decisions), run.ts))
        turns[turns[:, 0] == 7] = 0
        alive = np.asarray(run.ts.alive)
        ts = run.take(turns)
        assert (np.asarray(ts.events.legal_count) == np.where(alive, counts, 0)).all()
        decisions += int(ts.events.is_decision.sum())
    assert decisions > 50


def test_a_menu_too_large_names_what_to_coarsen():
    env = make("Search-v0", preset="calibration")
    assert env.spec.menu_size > 1024
    with pytest.raises(ValueError, match=r"at most 1024 .* coarsen delegate\.to .*delegate\.chunk .*actions='tokens'"):
        env.harness.menu  # noqa: B018


BAD_JSON = [
    ("stop", r"a call is an object"),
    ({"args": {}}, r"a call is an object"),
    ({"tool": "fly", "args": {}}, r"unknown tool 'fly'; tools: wait, spawn, .*check"),
    ({"tool": "stop", "args": {}, "why": 1}, r"unknown field 'why' in a call; fields: tool, args"),
    ({"tool": "stop", "args": [1]}, r"stop: 'args' must be an object"),
    ({"tool": "stop", "args": {"now": 1}}, r"stop has no argument 'now'; arguments: none"),
    ({"tool": "wait", "args": {}}, r"wait needs argument 'for'"),
    ({"tool": "wait", "args": {"for": "two"}}, r"wait\.for: got 'two', allowed: one, half, all"),
    ({"tool": "wait", "args": {"for": ["one"]}}, r"wait\.for: got \['one'\], allowed: one, half, all"),
    (
        {"tool": "spawn", "args": {"role": "searcher", "count": 3, "chunk": 4, "brief": "short"}},
        r"spawn\.count: got 3, allowed: 1, 2, 4, 8, 12",
    ),
    (
        {"tool": "spawn", "args": {"role": "searcher", "count": True, "chunk": 4, "brief": "short"}},
        r"spawn\.count: got True, allowed: 1, 2, 4, 8, 12",
    ),
    ({"tool": "despawn", "args": {"who": "row_1"}}, r"despawn\.who: 'row_1' is not a name of the roster"),
    ({"tool": "despawn", "args": {"who": "searcher_9"}}, r"despawn\.who: got 'searcher_9', allowed: row_0"),
    ({"tool": "check", "args": {"claim": 4}}, r"check\.claim: got 4, allowed: 0, 1, 2, 3"),
]


@pytest.mark.parametrize("call, said", BAD_JSON)
def test_bad_json_names_tool_argument_value_and_what_is_allowed(call, said):
    harness = make("Search-v0").harness
    with pytest.raises(ValueError, match=said) as error:
        harness.from_json(call, ["searcher_1", "searcher_2"])
    assert "\n" not in str(error.value)


BAD_TOKENS = [
    ([0, 0, 0], r"a turn has 5 positions, got 3"),
    ([10, 0, 0, 0, 0], r"tool token 10 is not in 0\.\.9"),
    ([-1, 0, 0, 0, 0], r"tool token -1 is not in 0\.\.9"),
    ([7, 0, 1, 0, 0], r"stop: unused position 2 is 1, must be 0"),
    ([1, 2, 0, 0, 0], r"spawn\.role: token 2 is not in 0\.\.1"),
    ([6, 3, 0, 0, 0], r"despawn\.who: roster row 3 is empty \(2 rows\)"),
]


@pytest.mark.parametrize("turn, said", BAD_TOKENS)
def test_bad_tokens_name_what_is_wrong(turn, said):
    harness = make("Search-v0").harness
    with pytest.raises(ValueError, match=said):
        harness.to_json(turn, ["searcher_1", "searcher_2"])


def test_positions_out_of_range():
    env = make("Search-v0", preset="tiny")
    legal = random_legal(env, np.random.default_rng(0), rows=4)
    for position in (-1, 6):
        with pytest.raises(ValueError, match=rf"position {position} is not in 0\.\.4"):
            env.legal_tokens(legal, jnp.zeros((4, 5), jnp.int32), position)


def test_an_argument_of_a_single_value_may_be_named_though_no_token_says_it():
    one = make("Search-v0", preset="tiny", counts=(1,))
    given = {"role": "checker", "chunk": 2, "brief": "detailed"}
    np.testing.assert_array_equal(one.harness.turn("spawn", count=1, **given), one.harness.turn("spawn", **given))
    with pytest.raises(ValueError, match=r"spawn.count: got 3, allowed: 1"):
        one.harness.turn("spawn", count=3)
    first = np.asarray(policy("swarm", one, n=3).lines)[:, 0]
    assert list(first[:3]) == [one.harness.tool("spawn")] * 3  # of one each
