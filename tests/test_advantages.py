"""Advantages against numbers worked by hand, a slow reference, and what must hold whatever the numbers."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_advantages as reference

from ddpomdp_baselines.advantages import CENTERS, SAMPLES, SCOPES, gae, normalise, returns_to_go

SIZES = (3, 4, 5)  # groups, agents, trajectories per group
E = 24
GRPO = {"sample": "trajectory"}
DR_MAS = {"center_scope": "group_agent", "scale_scope": "group_agent"}
DR_MAS_STD = {"center_scope": "group", "scale_scope": "group_agent"}


def ints(*values):
    return jnp.array(values, jnp.int32)


def floats(*values):
    return jnp.array(values, jnp.float32)


def padded(x, fill):
    return jnp.concatenate([x, jnp.full(E - len(x), fill, x.dtype)]) if len(x) < E else x


def advantage(value, **options):
    """Advantage and stats of a list of values, padded with masked entries to E. Ids not given are 0."""
    zeros = jnp.zeros(len(value), jnp.int32)
    options = {"trajectory": zeros, "group": zeros, "agent": zeros, "mask": zeros == 0, **options}
    options = {k: padded(x, 0) if isinstance(x, jax.Array) else x for k, x in options.items()}
    got, stats = normalise(padded(floats(*value), np.nan), **options)
    np.testing.assert_array_equal(got[len(value) :], 0.0)
    return got[: len(value)], dataclasses.replace(stats, inflation=stats.inflation[: len(value)])


# One group: trajectory 0 (won) with calls of agents 0, 0, 1, trajectory 1 (lost) with one call of agent 0,
# trajectory 2 (half) with calls of agents 0 and 1.
TEAM = [1.0, 1.0, 1.0, 0.0, 0.5, 0.5]
WHO = {"trajectory": ints(0, 0, 0, 1, 2, 2), "agent": ints(0, 0, 1, 0, 0, 1)}
CALLS_STD = math.sqrt((3 * (1 / 3) ** 2 + (2 / 3) ** 2 + 2 * (1 / 6) ** 2) / 5)  # mean of the six calls: 2/3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Trajectories 1, 0, .5: mean .5, std .5 (ddof 1) or sqrt(1/6) (ddof 0).
        (GRPO, [1.0, 1.0, 1.0, -1.0, 0.0, 0.0]),
        ({**GRPO, "ddof": 0}, [math.sqrt(1.5)] * 3 + [-math.sqrt(1.5), 0.0, 0.0]),
        ({**GRPO, "eps": 0.5}, [0.5, 0.5, 0.5, -0.5, 0.0, 0.0]),
        ({**GRPO, "scale": "none"}, [0.5, 0.5, 0.5, -0.5, 0.0, 0.0]),
        ({**GRPO, "scale": "none", "center": "leave_one_out"}, [0.75, 0.75, 0.75, -0.75, 0.0, 0.0]),
        # Calls 1, 1, 1, 0, .5, .5.
        ({}, [(1 / 3) / CALLS_STD] * 3 + [(-2 / 3) / CALLS_STD] + [(-1 / 6) / CALLS_STD] * 2),
        # Others of a call are the calls of other trajectories: mean of 0 .5 .5, of 1 1 1 .5 .5, of 1 1 1 0.
        ({"scale": "none", "center": "leave_one_out"}, [2 / 3] * 3 + [-0.8] + [-0.25] * 2),
        # Agent 0: calls 1, 1, 0, .5 (mean 5/8); agent 1: calls 1, .5 (mean 3/4).
        ({"scale": "none", "center_scope": "group_agent"}, [0.375, 0.375, 0.25, -0.625, -0.125, -0.25]),
        # Agent 1 alone: std of 1, .5 is .3536 with ddof 1, so +-.7071; its two trajectories count once each.
        (
            {**GRPO, "center_scope": "group_agent", "scale_scope": "group_agent"},
            [1.0, 1.0, math.sqrt(0.5), -1.0, 0.0, -math.sqrt(0.5)],
        ),
        ({"center": "none", "scale": "none"}, TEAM),
        # Own mean, group's std (dr_mas_mean).
        (
            {"center_scope": "group_agent"},
            [x / CALLS_STD for x in (0.375, 0.375, 0.25, -0.625, -0.125, -0.25)],
        ),
        # Tokens 1 1 2 4 1 1 of values 1 1 1 0 .5 .5: mean of ten is .5, squares 4/4 + 4/4 + 0 = 2, std sqrt(2/9).
        (
            {"sample": "token", "tokens": floats(1, 1, 2, 4, 1, 1)},
            [0.5 / math.sqrt(2 / 9)] * 3 + [-0.5 / math.sqrt(2 / 9), 0.0, 0.0],
        ),
        # The same shares as weights: still six samples, so std^2 = 6/5 * 2/10.
        (
            {"weight": floats(0.1, 0.1, 0.2, 0.4, 0.1, 0.1)},
            [0.5 / math.sqrt(0.24)] * 3 + [-0.5 / math.sqrt(0.24), 0.0, 0.0],
        ),
        # A role per call: role 7 holds the calls 1 and 0 of trajectories 0 and 1, role -7 calls 1, 1, .5, .5.
        (
            {"scale": "none", "center_scope": "group_role", "role": ints(7, -7, -7, 7, -7, -7)},
            [0.5, 0.25, 0.25, -0.5, -0.25, -0.25],
        ),
        # Two groups as one batch; in the second, trajectory 2 is alone and would get 0 in its own group.
        (
            {"scale": "none", "center_scope": "batch", "group": ints(0, 0, 0, 0, 1, 1)},
            [1 / 3] * 3 + [-2 / 3] + [-1 / 6] * 2,
        ),
        ({"scale": "none", "group": ints(0, 0, 0, 0, 1, 1)}, [0.25, 0.25, 0.25, -0.75, 0.0, 0.0]),
    ],
)
def test_worked_by_hand(options, expected):
    got, stats = advantage(TEAM, **{**WHO, **options})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)
    assert stats.calls == 6


def test_the_score_of_a_trajectory_is_the_mean_of_its_calls_in_the_cell():
    # Penalties on calls: trajectory 0 holds 1 and .5 of agent 0, .0 of agent 1; trajectory 1 holds .25 and .5.
    ids = {"trajectory": ints(0, 0, 0, 1, 1), "agent": ints(0, 0, 1, 0, 1)}
    own, _ = advantage([1.0, 0.5, 0.0, 0.25, 0.5], **ids, **GRPO, scale="none", center_scope="group_agent")
    np.testing.assert_allclose(own, [0.25, 0.25, -0.25, -0.25, 0.25])
    group, _ = advantage([1.0, 0.5, 0.0, 0.25, 0.5], **ids, **GRPO, scale="none")
    np.testing.assert_allclose(group, [0.0625, 0.0625, 0.0625, -0.0625, -0.0625])
    weighed, _ = advantage(
        [1.0, 0.5, 0.0, 0.25, 0.5], **ids, **GRPO, scale="none", weight=floats(3, 1, 4, 1, 1), center="none"
    )
    np.testing.assert_allclose(weighed, [3.5 / 8] * 3 + [0.375] * 2)


def test_statistics_of_a_small_batch():
    # Group 0: agent 0 acts in trajectories 0 (won), 1 (lost); agent 1 twice in 0; agent 2 in 2 and 3, both won.
    # Group 1: all lost.
    got, stats = advantage(
        [1, 0, 1, 1, 1, 1, 0, 0],
        group=ints(0, 0, 0, 0, 0, 0, 1, 1),
        trajectory=ints(0, 1, 0, 0, 2, 3, 0, 1),
        agent=ints(0, 0, 1, 1, 2, 2, 0, 0),
        **DR_MAS,
        ddof=0,
        eps=0.0,
    )
    np.testing.assert_array_equal(got, [1, -1, 0, 0, 0, 0, 0, 0])
    assert (stats.calls, stats.samples, stats.cells) == (8, 8, 4)
    assert (stats.singletons, stats.singleton_share) == (1, 0.25)
    assert (stats.zero_spread, stats.zero_spread_share, stats.mixed_share) == (2, 0.5, 0.25)
    np.testing.assert_array_equal(stats.inflation, [1, 1, 0, 0, 0, 0, 0, 0])
    assert (stats.inflation_mean, stats.inflation_max) == (1, 1)


def make_case(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random batch: lives that start and stop, uneven groups, padding that holds NaN."""
    groups, agents, trajectories = (rng.integers(1, size + 1) for size in SIZES)
    case = {
        "group": rng.integers(0, groups, E),
        "trajectory": rng.integers(0, trajectories, E),
        "agent": rng.integers(0, agents, E),
        "role": rng.integers(0, 2, E),
        "tokens": rng.integers(0, 9, E).astype(np.float32),
        "weight": rng.choice(np.float32([0, 0.5, 1, 1, 1, 2, 3]), E),
    }
    born, died = rng.integers(0, E // 2, (2, *SIZES))
    lives = (case["group"], case["agent"], case["trajectory"])
    time = np.arange(E)
    case["mask"] = (time >= born[lives] - E // 4) & (time < died[lives] + E // 2) & (time < rng.integers(E // 2, E + 1))
    outcome = rng.integers(0, 2, SIZES) if rng.random() < 0.6 else rng.normal(size=SIZES)
    value = outcome[case["group"], 0, case["trajectory"]] - 0.1 * (rng.random() < 0.4) * rng.integers(0, 2, E)
    case["value"] = np.where(case["mask"], value, np.nan).astype(np.float32)
    return {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in case.items()}


def stacked(cases: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.stack([case[name] for case in cases]) for name in cases[0]}


def run(cases: list[dict[str, np.ndarray]], whole: bool = False, **options):
    """Advantages and stats of all cases. `whole`: compiled as one program; not worth it for a setting used once."""
    batched = jax.vmap(lambda case: normalise(**case, **options))
    return (jax.jit(batched) if whole else batched)(stacked(cases))


def relabelled(case: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same batch under other ids, drawn from all of int32 and both its ends."""
    ends = np.array([-(2**31), 2**31 - 1, -1, 0], np.int64)
    names = rng.permutation(np.concatenate([ends, rng.integers(-(2**31), 2**31, 4)])).astype(np.int32)
    return {k: names[x] if k in ("group", "agent", "role", "trajectory") else x for k, x in case.items()}


def settings() -> list[dict]:
    """55 settings: every centre scope with every scale, and with every pair of sample and centre."""
    scales = [("none", "group", 1), *(("std", scope, ddof) for scope in SCOPES for ddof in (0, 1))]
    return [
        {
            "sample": SAMPLES[(j // 3 + i) % 3],
            "center": CENTERS[(j + i) % 3],
            "center_scope": center_scope,
            "scale": scale,
            "scale_scope": scale_scope,
            "ddof": ddof,
            "eps": (1e-6, 0.3)[(i + j) % 2],
        }
        for i, center_scope in enumerate(SCOPES)
        for j, (scale, scale_scope, ddof) in enumerate(scales)
    ]


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_the_settings_meet_in_every_pair():
    seen = settings()
    assert len({(s["center_scope"], s["scale"], s["scale_scope"], s["ddof"]) for s in seen}) == 55
    assert len({(s["center_scope"], s["sample"], s["center"]) for s in seen}) == 45
    for name, count in (("sample", 33), ("center", 33), ("eps", 22)):
        assert len({(s[name], s["scale"], s["scale_scope"], s["ddof"]) for s in seen}) == count


def test_agrees_with_the_reference_on_1540_random_batches():
    rng = np.random.default_rng(0)
    met = dict.fromkeys(("calls", "singletons", "zero_spread", "mixed_share", "inflation_max"), 0.0)
    for setting in settings():
        cases = [make_case(rng) for _ in range(28)]
        expected = [reference.normalise(case, **setting) for case in cases]
        for got, stats in (
            run(cases, sizes=SIZES, **setting),
            run([relabelled(case, rng) for case in cases], **setting),
        ):
            close(got, [advantages for advantages, _ in expected])
            for name in expected[0][1]:
                close(getattr(stats, name), [numbers[name] for _, numbers in expected], 2e-5)
        for name in met:
            met[name] += sum(numbers[name] > 0 for _, numbers in expected)
    assert all(count > 50 for count in met.values()), met


def test_order_of_entries_does_not_matter():
    rng = np.random.default_rng(1)
    cases = [make_case(rng) for _ in range(28)]
    orders = [rng.permutation(E) for _ in cases]
    mixed = [{k: x[order] for k, x in case.items()} for case, order in zip(cases, orders, strict=True)]
    for sizes in (None, SIZES):
        for options in (GRPO, {**DR_MAS, "center": "leave_one_out"}):
            straight, _ = run(cases, sizes=sizes, **options)
            turned, _ = run(mixed, sizes=sizes, **options)
            assert np.count_nonzero(straight) > 50
            close(turned, np.stack([row[order] for row, order in zip(np.asarray(straight), orders, strict=True)]))


def test_compiled_and_plain_agree():
    rng = np.random.default_rng(2)
    case = make_case(rng)
    for sizes in (None, SIZES):
        plain = normalise(**case, sizes=sizes, **DR_MAS)
        compiled = jax.jit(lambda case, sizes=sizes: normalise(**case, sizes=sizes, **DR_MAS))(case)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), plain, compiled)


VALUES = (0.0, 1.0, -1.0, 0.1, 1 / 3, 1e-6, 12345.678, -1e30)


def test_equal_returns_give_exactly_zero():
    """8 values x 2 to 64 trajectories of three calls each, of uneven weights; every sample, two eps."""
    rows = 64 * 3
    trajectory = jnp.arange(rows, dtype=jnp.int32) % 64
    zeros = jnp.zeros(rows, jnp.int32)
    weight = jnp.linspace(0.1, 0.7, rows)

    @jax.jit
    def all_of(value, n):
        return [
            normalise(
                jnp.full(rows, value),
                trajectory=trajectory,
                group=zeros,
                agent=zeros,
                tokens=weight * 30,
                weight=weight,
                mask=trajectory < n,
                sample=sample,
                eps=eps,
                sizes=(1, 1, 64),
            )
            for sample in SAMPLES
            for eps in (0.0, 1e-6)
        ]

    for value in VALUES:
        for n in range(2, 65):
            for got, stats in jax.device_get(all_of(value, n)):
                assert not np.any(got)
                assert (stats.calls, stats.zero_spread) == (3 * n, 1)


def test_one_different_among_many():
    """One success among G: sqrt(G - 1) and -1 / sqrt(G - 1) with ddof 0, and factor G - 1 for who acts only there."""
    place = jnp.arange(64, dtype=jnp.int32)
    zeros = jnp.zeros(64, jnp.int32)

    @jax.jit
    def one(n):
        who = {"trajectory": place, "group": zeros, "agent": (place > 0).astype(jnp.int32), "mask": place < n}
        return normalise((place == 0).astype(jnp.float32), **who, **GRPO, ddof=0, eps=0.0, sizes=(1, 2, 64))

    for n in range(2, 65):
        got, stats = one(n)
        close(got[:2], (np.sqrt(n - 1), -1 / np.sqrt(n - 1)))
        close(stats.inflation_max, n - 1)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_a_lone_trajectory_gives_exactly_zero(sample, sizes):
    """Three calls of one rollout with three values are no comparison, whatever centres or scales."""
    for center in CENTERS:
        got, stats = advantage(
            [5.0, 7.0, -3.0, 1.0, 0.0],
            group=ints(1, 1, 1, 0, 0),
            trajectory=ints(0, 0, 0, 0, 1),
            sample=sample,
            center=center,
            tokens=floats(1, 2, 3, 4, 5),
            sizes=sizes,
        )
        np.testing.assert_array_equal(got[:3], 0.0)
        assert np.all(got[3:] != 0) or center == "none"
        assert stats.singletons == 1
        assert stats.singleton_share == np.float32(0.6)


def test_one_outcome_cell_in_a_mixed_group_gives_exactly_zero():
    """Agent 1 acts only where the team wins: its own std is 0, its distance from the group's mean is not."""
    ids = {"trajectory": ints(0, 1, 2, 3, 0, 1), "agent": ints(0, 0, 0, 0, 1, 1)}
    got, stats = advantage([1, 1, 0, 0, 1, 1], **ids, **DR_MAS_STD)
    np.testing.assert_array_equal(got[4:], 0.0)
    assert np.all(np.abs(got[:4]) > 0.5)
    assert np.all(np.abs(got) < 2)
    assert (stats.zero_spread, stats.zero_spread_share, stats.mixed_share) == (1, np.float32(1 / 3), np.float32(1 / 3))
    # The same where the flat cell centres and the group scales.
    got, _ = advantage([1, 1, 0, 0, 1, 1], **ids, center_scope="group_agent")
    np.testing.assert_array_equal(got[4:], 0.0)


def test_a_spread_within_rounding_counts_as_none():
    for nearly in ([1.0, 1.0 + 5e-7, 1.0], [1e6, 1e6 + 0.5, 1e6]):
        got, stats = advantage(nearly, trajectory=ints(0, 1, 2))
        assert got.tolist() == [0.0, 0.0, 0.0]
        assert stats.zero_spread == 1
    got, stats = advantage([0.0, 3e-6, 0.0], trajectory=ints(0, 1, 2))
    assert np.all(got != 0)
    assert stats.zero_spread == 0


def random_outcomes(rng, n=300):
    """Groups of 2 to 8 trajectories in which three agents are called more or less often, depending on the outcome."""
    cases = []
    for _ in range(n):
        size = rng.integers(2, 9)
        outcome = rng.integers(0, 2, 8) if rng.random() < 0.5 else rng.normal(size=8)
        trajectory = rng.integers(0, size, E).astype(np.int32)
        often = rng.random((2, 3)) ** 2 + 1e-3
        p = often[(outcome > 0.2).astype(int)]
        agent = np.array([rng.choice(3, p=row / row.sum()) for row in p[trajectory]], np.int32)
        cases.append({
            "value": outcome[trajectory].astype(np.float32), "trajectory": trajectory, "agent": agent,
            "group": np.zeros(E, np.int32),
        })  # fmt: skip
    return cases


def test_inflation_factor_is_that_of_the_lemma_and_below_the_number_of_trajectories():
    cases = random_outcomes(np.random.default_rng(3))
    _, stats = run(cases, whole=True, sizes=(1, 3, 8), **GRPO, ddof=0, eps=0.0)
    factors, largest, mixed = np.asarray(stats.inflation), [], 0
    for case, factor in zip(cases, factors, strict=True):
        outcome = {t: float(v) for t, v in zip(case["trajectory"], case["value"], strict=True)}
        results = np.array(list(outcome.values()))
        if np.ptp(results) <= 1e-6:
            assert np.all(factor == 0)
            continue
        mixed += 1
        for k in range(3):
            own = case["value"][case["agent"] == k].astype(np.float64)
            if own.size:
                lemma = (np.var(own) + (np.mean(own) - results.mean()) ** 2) / np.var(results)
                close(factor[case["agent"] == k], lemma)
                largest.append(lemma / (len(results) - 1))
        assert np.all(factor <= (len(results) - 1) * (1 + 1e-5))
    assert mixed > 200
    assert max(largest) > 0.99  # the bound is met, not only kept


def test_inflation_factor_of_own_statistics_is_one():
    cases = random_outcomes(np.random.default_rng(4))
    got, stats = run(cases, whole=True, sizes=(1, 3, 8), **DR_MAS, ddof=0, eps=0.0)
    heard = np.any(np.asarray(got) != 0, axis=1)
    assert heard.sum() > 200
    assert np.asarray(stats.zero_spread).sum() > 50
    close(np.asarray(stats.inflation_mean)[heard], 1.0)
    close(np.asarray(stats.inflation_max)[heard], 1.0)
    np.testing.assert_array_equal(np.asarray(stats.inflation_mean)[~heard], 0.0)


@pytest.mark.parametrize("options", [GRPO, DR_MAS, DR_MAS_STD, {"center": "leave_one_out", "sample": "token"}])
def test_rewards_of_any_size_are_finite(options):
    rng = np.random.default_rng(5)
    cases = [make_case(rng) for _ in range(28)]
    plain, _ = run(cases, sizes=SIZES, **options, eps=0.0)
    for factor in (1e6, 1e-6, 1e30, 1e-30):
        scaled = [{**case, "value": case["value"] * np.float32(factor)} for case in cases]
        got, stats = run(scaled, sizes=SIZES, **options, eps=0.0)
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((got, stats)))
        if factor > 1:
            close(got, plain)
    assert np.count_nonzero(plain) > 50


def test_an_offset_costs_no_precision():
    got, _ = advantage([1e6, 1e6 + 2, 1e6 + 4], trajectory=ints(0, 1, 2))
    close(got, [-1.0, 0.0, 1.0])


def test_gradients_are_finite_and_right():
    """Against differences of the reference, in batches with flat cells, singletons and padding that holds NaN."""
    rng = np.random.default_rng(6)
    probe = rng.normal(size=E)
    for options in ({**GRPO, "eps": 1e-6}, {**DR_MAS_STD, "center": "leave_one_out", "eps": 0.3}):
        setting = {"sample": "call", "center": "mean", "center_scope": "group", "scale": "std", "scale_scope": "group"}
        setting = {**setting, "ddof": 1, **options}
        flat = singletons = 0

        def loss(value, case, setting=setting):
            got, stats = normalise(**{**case, "value": value}, sizes=SIZES, **setting)
            return jnp.sum(got * probe), stats

        slope = jax.jit(jax.grad(loss, has_aux=True))
        for _ in range(4):
            case = make_case(rng)
            case["value"] = np.where(case["group"] == 0, rng.normal(size=E).astype(np.float32), case["value"])

            got, stats = slope(jnp.asarray(case["value"]), case)
            flat, singletons = flat + stats.zero_spread, singletons + stats.singletons
            assert np.all(np.isfinite(got))
            for e in np.flatnonzero(case["mask"] & (case["group"] == 0) & (case["weight"] > 0))[:6]:
                moved = [case["value"].astype(np.float64) + d * (np.arange(E) == e) for d in (1e-6, -1e-6)]
                high, low = (np.dot(reference.normalise({**case, "value": v}, **setting)[0], probe) for v in moved)
                np.testing.assert_allclose(got[e], (high - low) / 2e-6, rtol=2e-3, atol=2e-3)
        assert flat > 0
        assert singletons > 0


def test_masked_entries_enter_nothing():
    """Whatever they hold in any column; by mask, by weight, by tokens or by an id out of range."""
    rng = np.random.default_rng(7)
    case = make_case(rng)
    case["weight"] = np.maximum(case["weight"], np.float32(0.5))
    case["tokens"] = np.maximum(case["tokens"], 1)
    case["value"] = np.nan_to_num(case["value"], nan=1.0)
    kept = rng.random(E) < 0.6
    case["mask"] = np.ones(E, bool)
    dropped = {k: x[kept] for k, x in case.items()}

    def spoil(**columns):
        return {**case, **{k: np.where(kept, case[k], np.array(bad, case[k].dtype)) for k, bad in columns.items()}}

    ways = [
        spoil(mask=False, value=np.nan, weight=np.inf, tokens=np.nan, agent=2**31 - 1, group=-5),
        spoil(mask=False, value=-np.inf, weight=-1.0, tokens=-np.inf, trajectory=-(2**31)),
        spoil(weight=0.0, value=np.nan),
        spoil(weight=np.nan, value=np.inf),
        spoil(weight=np.inf),
        spoil(tokens=0.5, value=1e30),
    ]
    beyond = [spoil(**{name: bad}) for name in ("group", "agent", "trajectory", "role") for bad in (-1, 5)]
    options = {"sample": "token", "center_scope": "group_role"}
    rest = {"center": "mean", "scale": "std", "scale_scope": "group", "ddof": 1, "eps": 1e-6}
    expected, numbers = reference.normalise(dropped, **options, **rest)
    assert np.count_nonzero(expected) > 3
    for way, sizes in [(way, sizes) for way in ways for sizes in (None, SIZES)] + [(way, SIZES) for way in beyond]:
        got, stats = normalise(**way, sizes=sizes, **options)
        close(got[kept], expected)
        np.testing.assert_array_equal(got[~kept], 0.0)
        np.testing.assert_array_equal(stats.inflation[~kept], 0.0)
        assert (stats.calls, stats.cells, stats.samples) == tuple(
            numbers[name] for name in ("calls", "cells", "samples")
        )


def test_a_nan_that_counts_is_seen_and_stays_in_its_cells():
    got, _ = advantage([np.nan, 1, 1, 0], group=ints(0, 0, 1, 1), trajectory=ints(0, 1, 0, 1))
    assert np.all(np.isnan(got[:2]))
    assert np.all(np.isfinite(got[2:]))


@pytest.mark.parametrize("sizes", [None, SIZES])
def test_nothing_to_look_at(sizes):
    case = make_case(np.random.default_rng(8))
    nobody, nothing = {**case, "mask": np.zeros(E, bool)}, {k: x[:0] for k, x in case.items()}
    for batch in (nobody, nothing) if sizes is None else (nobody,):
        for x in jax.tree.leaves(normalise(**batch, sizes=sizes, **DR_MAS)):
            np.testing.assert_array_equal(x, 0.0)


def test_the_unit_of_weights_does_not_matter():
    case = make_case(np.random.default_rng(9))
    for sample in SAMPLES:
        one, _ = normalise(**case, sample=sample, sizes=SIZES)
        other, _ = normalise(**{**case, "weight": case["weight"] * 1e-3}, sample=sample, sizes=SIZES)
        assert np.count_nonzero(one) > 3
        close(other, one)


def test_trajectories_may_be_numbered_anew_in_each_group():
    value, group = [1, 0, 1, 0, 0], ints(0, 0, 0, 1, 1)
    for scope in ("batch", "group"):
        options = {"group": group, "center": "leave_one_out", "center_scope": scope, "scale": "none"}
        anew, _ = advantage(value, trajectory=ints(0, 1, 1, 0, 1), **options)
        through, _ = advantage(value, trajectory=ints(0, 1, 1, 2, 3), **options)
        np.testing.assert_array_equal(anew, through)
        assert np.any(anew != 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sample": "calls"}, "unknown sample 'calls'; did you mean call"),
        ({"center": "median"}, "allowed: leave_one_out, mean, none"),
        ({"center_scope": "agents"}, "unknown center_scope 'agents'"),
        ({"scale": "var"}, "unknown scale 'var'"),
        ({"scale_scope": "life"}, "allowed: agent, batch, group, group_agent, group_role"),
        ({"ddof": 2}, "ddof: got 2, allowed: whole numbers 0 to 1"),
        ({"eps": -1e-6}, "eps: got -1e-06"),
        ({"scale_scope": "group_role"}, "role: got None"),
        ({"sample": "token"}, "tokens: got None"),
        ({"sizes": (1, 2)}, "sizes: got (1, 2), allowed: 3 whole numbers"),
        ({"sizes": (1, 0, 2)}, "sizes: got (1, 0, 2)"),
        ({"sizes": (2**11, 2**11, 2**11)}, "product below 2**31 - 1"),
    ],
)
def test_wrong_options_are_named(wrong, words):
    with pytest.raises(ValueError) as error:
        advantage(TEAM, **{**WHO, **wrong})
    assert words in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"agent": ints(0, 1)},
        {"mask": jnp.ones((6, 1), bool)},
        {"mask": jnp.ones(6)},
        {"trajectory": jnp.zeros(6)},
        {"weight": floats(1)},
    ],
)
def test_wrong_shapes_and_types_are_refused(wrong):
    with pytest.raises(AssertionError):
        normalise(floats(*TEAM), **{"group": jnp.zeros(6, jnp.int32), **WHO, **wrong})


def test_returns_by_hand():
    reward = floats(1, 2, 4, 8)
    np.testing.assert_array_equal(returns_to_go(reward), [15, 14, 12, 8])
    np.testing.assert_array_equal(returns_to_go(reward, discount=0.5), [4, 6, 8, 8])
    ends = jnp.array([False, True, False, False])
    np.testing.assert_array_equal(returns_to_go(reward, ends, 0.5), [2, 2, 8, 8])
    # The masked step is not there at all: neither its reward, nor its end, nor a discount for it.
    mask = jnp.array([True, False, True, True])
    np.testing.assert_array_equal(returns_to_go(reward, ends, 0.5, mask=mask), [5, 0, 8, 8])


def test_gae_by_hand():
    reward, value = floats(1, 0, 2), floats(0.5, 1, 1)
    # delta with discount .5, bootstrap 4: 1 + .5 - .5 = 1, 0 + .5 - 1 = -.5, 2 + 2 - 1 = 3; decay .5: factor .25.
    got, target = gae(reward, value, jnp.float32(4), discount=0.5, decay=0.5)
    np.testing.assert_array_equal(got, [1 + 0.25 * 0.25, -0.5 + 0.75, 3])
    np.testing.assert_array_equal(target, [1.5625, 1.25, 4])
    # An end after the second step: its delta is 0 - 1, and nothing later reaches it.
    got, _ = gae(reward, value, jnp.float32(4), jnp.array([False, True, False]), discount=0.5, decay=0.5)
    np.testing.assert_array_equal(got, [1 - 0.25, -1, 3])
    # Without the second step the first is followed by the third.
    mask = jnp.array([True, False, True])
    got, target = gae(reward, value, jnp.float32(4), discount=0.5, decay=0.5, mask=mask)
    np.testing.assert_array_equal(got, [1 + 0.75, 0, 3])
    np.testing.assert_array_equal(target, [2.25, 0, 4])


def test_returns_and_gae_agree_with_the_reference():
    """1,000 columns of 12 steps that start, stop, end and pause; what is masked holds NaN."""
    rng = np.random.default_rng(10)
    shape = (12, 1000)
    mask = rng.random(shape) < 0.8
    time = np.arange(12)[:, None]
    mask &= (time >= rng.integers(0, 6, 1000)) & (time < rng.integers(4, 13, 1000))
    ends = rng.random(shape) < 0.2
    reward, value = (np.where(mask, rng.normal(size=shape), np.nan).astype(np.float32) for _ in range(2))
    bootstrap = rng.normal(size=1000).astype(np.float32)
    returns = returns_to_go(reward, ends, 0.9, mask=mask)
    advantages, targets = gae(reward, value, bootstrap, ends, discount=0.9, decay=0.8, mask=mask)
    assert (ends & mask).sum() > 500
    columns = list(zip(reward.T, value.T, bootstrap, ends.T, mask.T, strict=True))
    close(returns.T, [reference.returns_to_go(r, end, 0.9, m) for r, _, _, end, m in columns])
    expected = [reference.gae(r, v, last, end, 0.9, 0.8, m) for r, v, last, end, m in columns]
    close(np.stack([advantages.T, targets.T], axis=1), expected)


def test_gae_with_full_decay_is_the_return_less_the_value():
    rng = np.random.default_rng(11)
    reward, value = (jnp.asarray(rng.normal(size=(8, 2)), jnp.float32) for _ in range(2))
    ends = jnp.zeros((8, 2), bool).at[-1].set(True)
    _, target = gae(reward, value, floats(np.nan, np.inf), ends, discount=0.9, decay=1.0)
    close(target, returns_to_go(reward, ends, 0.9))


def test_gradients_of_returns_and_gae_do_not_see_padding():
    reward, mask = floats(1, np.nan, 2), jnp.array([True, False, True])
    np.testing.assert_array_equal(jax.grad(lambda r: returns_to_go(r, mask=mask).sum())(reward), [1, 0, 2])
    total = lambda v: gae(reward, v, jnp.float32(0), mask=mask, decay=0.5)[0].sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(total)(floats(0, np.inf, 0)), [-1, 0, -0.5])


def test_a_nan_does_not_cross_an_end():
    ends = jnp.array([True, False])
    np.testing.assert_array_equal(returns_to_go(floats(1, np.nan), ends)[0], 1)
    np.testing.assert_array_equal(gae(floats(1, np.nan), floats(0, 0), jnp.float32(0), ends)[0][0], 1)


def test_wrong_shapes_of_steps_are_refused():
    with pytest.raises(AssertionError):
        returns_to_go(floats(1, 2), jnp.zeros((2, 1), bool))
    with pytest.raises(AssertionError):
        gae(jnp.zeros((3, 2)), jnp.zeros((3, 2)), jnp.float32(0))
