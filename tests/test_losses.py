"""Ratio rules, weights, KL estimators and entropy against numbers worked by hand and a slow reference."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_advantages as reference

from ddpomdp_baselines.losses import (
    ESTIMATORS,
    MODES,
    entropy,
    kl,
    policy_loss,
    token_log_ratio,
    token_weights,
    trajectory_log_ratio,
)


def floats(*values):
    return jnp.array(values, jnp.float32)


def ints(*values):
    return jnp.array(values, jnp.int32)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


RATIOS = (0.5, 0.9, 1.0, 1.5, 5.0)


def loss_and_slope(ratios, advantage, **options):
    """Loss at each ratio, and its derivative in log_prob."""

    def total(log_prob):
        loss = policy_loss(log_prob, token_log_ratio(log_prob, jnp.zeros_like(log_prob)), advantage, **options)
        return jnp.sum(loss), loss

    slope, loss = jax.grad(total, has_aux=True)(jnp.log(floats(*ratios)))
    return loss, slope


@pytest.mark.parametrize(
    ("options", "sign", "loss", "slope"),
    [
        # Clipped where it would gain: above 1.2 for good calls, below .8 for bad ones.
        ({}, 1, [-0.5, -0.9, -1, -1.2, -1.2], [-0.5, -0.9, -1, 0, 0]),
        ({}, -1, [0.8, 0.9, 1, 1.5, 5], [0, 0.9, 1, 1.5, 5]),
        ({"low": 0.05, "high": 0.6}, 1, [-0.5, -0.9, -1, -1.5, -1.6], [-0.5, -0.9, -1, -1.5, 0]),
        ({"low": 0.05, "high": 0.6}, -1, [0.95, 0.95, 1, 1.5, 5], [0, 0, 1, 1.5, 5]),
        ({"dual": 3.0}, -1, [0.8, 0.9, 1, 1.5, 3], [0, 0.9, 1, 1.5, 0]),
        ({"dual": 3.0}, 1, [-0.5, -0.9, -1, -1.2, -1.2], [-0.5, -0.9, -1, 0, 0]),
        ({"low": None, "high": None}, 1, [-0.5, -0.9, -1, -1.5, -5], [-0.5, -0.9, -1, -1.5, -5]),
        ({"low": None, "high": None}, -1, RATIOS, RATIOS),
        # Masked outside on both sides, whatever the sign.
        (
            {"rule": "two_sided_mask", "low": 0.8, "high": 2.0},
            1,
            [-0.8, -0.9, -1, -1.5, -2],
            [0, -0.9, -1, -1.5, 0],
        ),
        ({"rule": "two_sided_mask", "low": 0.8, "high": 2.0}, -1, [0.8, 0.9, 1, 1.5, 2], [0, 0.9, 1, 1.5, 0]),
        ({"rule": "none"}, 1, [-math.log(r) for r in RATIOS], [-1] * 5),
        ({"rule": "none"}, -1, [math.log(r) for r in RATIOS], [1] * 5),
    ],
)
def test_ratio_rules_by_hand(options, sign, loss, slope):
    for size in (1.0, 2.0):
        got = loss_and_slope(RATIOS, jnp.full(5, sign * size), **options)
        close(got, (size * np.array(loss), size * np.array(slope)))


def test_the_slope_at_the_policy_that_acted_is_the_plain_policy_gradient():
    advantage = floats(2, -1, 0, 0.5, -3)
    for options in ({}, {"dual": 3.0}, {"rule": "two_sided_mask", "low": 0.5, "high": 2.0}, {"rule": "none"}):
        close(loss_and_slope([1.0] * 5, advantage, **options)[1], -advantage)


def test_the_trajectory_ratio_is_the_product_over_its_entries():
    log_prob, trajectory = jnp.log(floats(2, 3, 5, 7, 11)), ints(4, -9, 4, 4, -9)
    mask = jnp.array([True, True, True, False, True])
    ratio = jnp.exp(trajectory_log_ratio(log_prob, jnp.zeros(5), trajectory, mask))
    close(ratio, [10, 33, 10, 1, 33])
    numbered = trajectory_log_ratio(log_prob, jnp.zeros(5), ints(0, 1, 0, 2, 1), num_trajectories=2)
    close(jnp.exp(numbered), [10, 33, 10, 1, 33])


def test_the_trajectory_ratio_has_the_gradient_of_the_product():
    """mean over trajectories of -ratio x advantage, as plain product and as entries with weight 1 / n."""
    features = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    trajectory, advantage = ints(0, 0, 0, 1, 1, 1), floats(1, 1, 1, -2, -2, -2)
    old = features @ floats(0.1, 0.2, 0.3)

    def product(theta):
        ratio = jnp.exp(jnp.sum((features @ theta - old).reshape(2, 3), axis=1))
        return -jnp.mean(ratio * advantage[::3])

    def entries(theta, **bounds):
        log_prob = features @ theta
        log_ratio = trajectory_log_ratio(log_prob, old, trajectory)
        weight = token_weights(jnp.ones(6), trajectory, trajectory, None, "sum_constant", constant=1.0)
        return jnp.sum(weight * policy_loss(log_prob, log_ratio, advantage, **bounds))

    theta = floats(0.3, -0.1, 0.2)
    expected = jax.grad(product)(theta)
    assert np.all(np.abs(expected) > 0.01)
    close(jax.grad(entries)(theta, low=None, high=None), expected)
    # With a clip the whole trajectory is dropped, or none of it.
    per_entry = jax.grad(
        lambda x: jnp.sum(policy_loss(x, trajectory_log_ratio(x, jnp.zeros(6), trajectory), advantage))
    )(floats(0.1, 0.1, 0.1, 0, 0, 0.05))
    close(per_entry, [0, 0, 0, 2 * math.exp(0.05), 2 * math.exp(0.05), 2 * math.exp(0.05)])


def test_ratios_stay_finite():
    far = floats(1000, -1000, 20.5)
    for log_ratio in (token_log_ratio(far, jnp.zeros(3)), trajectory_log_ratio(far, jnp.zeros(3), ints(0, 1, 2))):
        np.testing.assert_array_equal(log_ratio, [20, -20, 20])
    loss, slope = loss_and_slope([1e30, 1e-30], floats(1, -1), low=None, high=None)
    assert np.all(np.isfinite(loss))
    np.testing.assert_array_equal(slope, 0)


def test_masked_entries_give_no_loss_and_no_gradient():
    mask = jnp.array([True, False])
    bad = floats(0.5, np.nan)

    def total(x):
        token = policy_loss(x, token_log_ratio(x, bad, mask), bad, mask)
        trajectory = policy_loss(x, trajectory_log_ratio(x, bad, ints(0, 0), mask), bad, mask, rule="none")
        estimates = [kl(x, bad, mask, estimator=name) for name in ESTIMATORS]
        losses = jnp.stack([token, trajectory, *estimates])
        return jnp.sum(losses), losses

    for x in (floats(0.6, np.nan), floats(0.6, -np.inf)):
        slope, losses = jax.grad(total, has_aux=True)(x)
        assert np.all(losses[:, 0] != 0)
        np.testing.assert_array_equal(losses[:, 1], 0)
        assert np.isfinite(slope[0])
        assert slope[0] != 0
        assert slope[1] == 0


def test_no_gradient_flows_to_what_is_given():
    """Not to the advantage, not to the policy that acted, not to the reference."""

    def total(old, advantage):
        x = floats(0.1, 0.2)
        token = policy_loss(x, token_log_ratio(x, old), advantage)
        trajectory = policy_loss(x, trajectory_log_ratio(x, old, ints(0, 0)), advantage, rule="none")
        return jnp.sum(token + trajectory + kl(x, old))

    np.testing.assert_array_equal(jax.grad(total, (0, 1))(floats(0, 0.3), floats(1, -1)), 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rule": "ppo"}, "unknown rule 'ppo' (allowed: clip, none, two_sided_mask)"),
        ({"low": -0.1}, "low: got -0.1"),
        ({"low": 0.2, "high": None}, "low, high: got 0.2, None"),
        ({"rule": "two_sided_mask", "high": 0.5}, "high: got 0.5, allowed: numbers 1 to 1e+06"),
        ({"rule": "two_sided_mask", "low": None, "high": None}, "low, high: got None, None"),
        ({"dual": 1.0}, "dual: got 1.0, allowed: None or a number above 1"),
        ({"rule": "none", "dual": 3.0}, "dual: got 3.0, allowed: None where rule is 'none'"),
    ],
)
def test_wrong_rules_are_named(wrong, words):
    with pytest.raises(ValueError) as error:
        policy_loss(floats(0), floats(0), floats(0), **wrong)
    assert words in str(error.value)


def test_wrong_shapes_and_types_are_refused():
    x = floats(0, 0)
    for call in (
        lambda: token_log_ratio(x, x[:1]),
        lambda: token_log_ratio(x, x, jnp.ones(2)),
        lambda: trajectory_log_ratio(x, x, x),
        lambda: policy_loss(x, x, x[:, None]),
        lambda: kl(x, x, jnp.ones((2, 1), bool)),
        lambda: entropy(x, jnp.ones(1, bool)),
        lambda: token_weights(x, ints(0, 0), ints(0), None, "token_mean"),
    ):
        with pytest.raises(AssertionError):
            call()


def test_kl_estimators_by_hand():
    log_prob, ref = jnp.log(floats(0.5, 0.5, 0.25)), jnp.log(floats(0.25, 0.5, 0.5))
    log2 = math.log(2)
    close(kl(log_prob, ref, estimator="k1"), [log2, 0, -log2])
    close(kl(log_prob, ref, estimator="k2"), [log2**2 / 2, 0, log2**2 / 2])
    close(kl(log_prob, ref, estimator="k3"), [0.5 + log2 - 1, 0, 2 - log2 - 1])
    close(kl(floats(0, 0, -30), floats(-30, 4, 0), estimator="k1"), [20, -4, -20])
    np.testing.assert_array_equal(kl(floats(0, -30), floats(4, 0)), 10)  # e^4 - 5 is 49
    slope = jax.grad(lambda x: jnp.sum(kl(x, floats(4, 0))))(floats(0, -30))
    np.testing.assert_array_equal(slope, 0)
    with pytest.raises(ValueError, match="unknown estimator 'k4'"):
        kl(log_prob, ref, estimator="k4")


def test_kl_estimators_have_the_right_mean():
    """Over all choices of a policy: k1 and k3 have mean KL; the gradient of k1 has mean 0, that of k2 is KL's."""
    logits, ref = floats(0.5, -1, 0.2, 0), jax.nn.log_softmax(floats(0, 0.3, -0.5, 1))
    p = jax.nn.softmax(logits)
    exact = lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - ref))  # noqa: E731
    for name in ("k1", "k3"):
        close(jnp.sum(p * kl(jnp.log(p), ref, estimator=name)), exact(logits))
    assert np.all(kl(jnp.log(p), ref) >= 0)
    slopes = {
        name: jax.grad(lambda x, name=name: jnp.sum(p * kl(jax.nn.log_softmax(x), ref, estimator=name)))(logits)
        for name in ("k1", "k2")
    }
    close(slopes["k1"], jnp.zeros(4))
    close(slopes["k2"], jax.grad(exact)(logits))


def test_entropy_by_hand():
    legal = jnp.array([[True, True, True, True], [True, False, True, False], [False, False, True, False], [False] * 4])
    got = entropy(jnp.zeros((4, 4)), legal)
    close(got, [math.log(4), math.log(2), 0, 0])
    np.testing.assert_array_equal(got[2:], 0)
    close(entropy(floats(math.log(3), 0), jnp.ones(2, bool)), math.log(4) - 0.75 * math.log(3))


def test_entropy_agrees_with_plain_loops_and_never_breaks():
    rng = np.random.default_rng(1)
    size = rng.choice([1.0, 30.0, 1e4], (1000, 1))
    logits = (rng.normal(size=(1000, 6)) * size).astype(np.float32)
    legal = rng.random((1000, 6)) < rng.choice([0.1, 0.5, 1.0], (1000, 1))
    spoiled = np.where(legal, logits, rng.choice([np.nan, np.inf, -np.inf, 1e30], logits.shape)).astype(np.float32)
    got, pull = jax.vjp(lambda x: entropy(x, legal), jnp.asarray(spoiled))
    (slope,) = pull(jnp.ones(1000))
    counts = legal.sum(axis=1)
    assert min(np.sum(counts == 0), np.sum(counts == 1), np.sum(counts > 1)) > 50
    expected = []
    for row, mask in zip(logits.astype(np.float64), legal, strict=True):
        mass = np.exp(row[mask] - row[mask].max(initial=-np.inf))
        expected.append(-sum(p * math.log(p) for p in mass / mass.sum() if p > 0))
    close(got, expected)
    assert np.all(np.isfinite(slope))
    np.testing.assert_array_equal(got[counts <= 1], 0)
    np.testing.assert_array_equal(slope[counts <= 1], 0)
    np.testing.assert_array_equal(slope[~legal], 0)
    assert np.count_nonzero(slope) > 500


# Trajectory 0: agent 0 says 1 + 2 tokens, agent 1 says 3. Trajectory 1: agent 0 says 4. The last call is masked.
SAID = {
    "tokens": floats(1, 2, 3, 4, 5),
    "trajectory": ints(0, 0, 0, 1, 1),
    "agent": ints(0, 0, 1, 0, 1),
    "mask": jnp.array([True, True, True, True, False]),
}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", [0.1, 0.1, 0.1, 0.1, 0]),
        ("sequence_mean", [1 / 12, 1 / 12, 1 / 12, 1 / 8, 0]),
        ("sum_constant", [1 / 16, 1 / 16, 1 / 16, 1 / 16, 0]),
        ("agent_mean", [1 / 12, 1 / 12, 1 / 12, 1 / 8, 0]),
    ],
)
@pytest.mark.parametrize("sizes", [None, (2, 3)])
def test_weights_by_hand(mode, expected, sizes):
    close(token_weights(**SAID, mode=mode, sizes=sizes, constant=8.0), expected)


def test_the_four_weights_differ_where_agents_speak_unevenly():
    said = {**SAID, "tokens": floats(1, 1, 8, 4, 5)}
    got = [token_weights(**said, mode=mode, constant=8.0) for mode in MODES]
    close(got[3], [1 / 8, 1 / 8, 1 / 32, 1 / 8, 0])  # trajectory 1/2, agent 1/2, then 2 or 8 tokens
    assert len({tuple(np.asarray(x).tolist()) for x in got}) == 4


@pytest.mark.parametrize("mode", MODES)
def test_weights_agree_with_the_reference_on_1000_random_batches(mode):
    rng = np.random.default_rng(2)
    n, size = 1000, 20
    tokens = rng.integers(0, 9, (n, size)).astype(np.float32)
    trajectory = (rng.integers(0, 5, (n, size)) % rng.integers(1, 6, (n, 1))).astype(np.int32)
    agent = (rng.integers(0, 4, (n, size)) % rng.integers(1, 5, (n, 1))).astype(np.int32)
    mask = np.arange(size) < rng.integers(0, size + 1, (n, 1))
    expected = [reference.token_weights(*row, mode, 7.0) for row in zip(tokens, trajectory, agent, mask, strict=True)]
    spoiled = np.where(mask, tokens, np.nan)
    order = rng.permutation(size)

    def weigh(*columns, sizes=None):
        return jax.jit(jax.vmap(lambda *row: token_weights(*row, mode, sizes=sizes, constant=7.0)))(*columns)

    sized = weigh(spoiled, trajectory, agent, mask, sizes=(4, 5))
    close(sized, expected)
    far = weigh(spoiled, (trajectory - 2) * np.int32(2**29), agent - 2, mask)
    close(far, expected)
    turned = weigh(*(x[:, order] for x in (spoiled, trajectory, agent, mask)), sizes=(4, 5))
    close(turned, np.asarray(sized)[:, order], 1e-6)
    heard = np.any(mask & (tokens > 0), axis=1)
    assert 900 < heard.sum() < n
    if mode != "sum_constant":
        close(np.sum(sized * tokens, axis=1), heard)


def test_ids_out_of_range_are_masked():
    beyond = {**SAID, "mask": None, "agent": ints(0, 0, 1, 0, 2)}
    close(token_weights(**beyond, mode="token_mean", sizes=(2, 2)), [0.1, 0.1, 0.1, 0.1, 0])
    beyond = {**SAID, "mask": None, "trajectory": ints(0, 0, 0, 1, -1)}
    close(token_weights(**beyond, mode="sequence_mean", sizes=(2, 2)), [1 / 12, 1 / 12, 1 / 12, 1 / 8, 0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mode": "mean"}, "unknown mode 'mean'"),
        ({"mode": "sum_constant"}, "constant: got None, allowed: a positive number"),
        ({"mode": "sum_constant", "constant": 0.0}, "constant: got 0.0"),
        ({"mode": "token_mean", "sizes": (2,)}, "sizes: got (2,), allowed: 2 whole numbers"),
    ],
)
def test_wrong_weights_are_named(wrong, words):
    with pytest.raises(ValueError) as error:
        token_weights(**SAID, **wrong)
    assert words in str(error.value)


def test_a_wrong_number_of_trajectories_is_named():
    with pytest.raises(ValueError, match="sizes: got \\(0,\\)"):
        trajectory_log_ratio(floats(0), floats(0), ints(0), num_trajectories=0)
