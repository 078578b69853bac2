"""Losses per token: ratio rules, weights that aggregate them, KL estimators and entropy.

A loss is sum_e weight_e x tokens_e x loss_e: `policy_loss` and `kl` give loss_e, `token_weights` gives weight_e, and
tokens_e is 1 where an entry is one token.
"""

import chex
import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp.options import choose, number
from ddpomdp_baselines.cells import check_sizes, in_range, partition

RULES = ("clip", "two_sided_mask", "none")
MODES = ("token_mean", "sequence_mean", "sum_constant", "agent_mean")
ESTIMATORS = ("k1", "k2", "k3")
LOG_RATIO_LIMIT = 20.0  # a ratio lies in exp(-20)..exp(20); beyond, its gradient is 0
K3_LIMIT = 10.0  # k3 is at most this; beyond, its gradient is 0


def token_log_ratio(log_prob: jax.Array, old_log_prob: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Log of the token ratio: log_prob - old_log_prob, within +-20.

    PPO (Schulman et al. 2017, arXiv 1707.06347). The limit is the one common in released code; it keeps the ratio
    finite and lets no gradient through beyond.

    Args:
      log_prob: f32[...], under the policy that learns. Differentiable.
      old_log_prob: f32[...], under the policy that acted; no gradient flows through it.
      mask: bool[...], True: counts. Masked entries may hold anything and get 0. Default: all.

    Returns:
      f32[...].

    Raises:
      AssertionError: shapes or types that do not fit, when traced.
    """
    _, log_prob, old_log_prob = _masked(mask, log_prob, old_log_prob)
    return _limited(log_prob - lax.stop_gradient(old_log_prob))


def trajectory_log_ratio(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    trajectory: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_trajectories: int | None = None,
) -> jax.Array:
    """Log of the trajectory's product ratio, at each of its entries: sum_j (log_prob_j - old_log_prob_j), within +-20.

    j runs over the unmasked entries of the trajectory. M-GRPO (2025, arXiv 2511.13288), which writes the ratio of a
    trajectory as the product over its steps. The gradient of entry e is that of log_prob_e alone, so that entries may
    carry different advantages and weights; where those are equal, the sum over entries has the gradient of the
    product ratio itself (the device of GSPO, arXiv 2507.18071, whose ratio is the geometric mean instead).

    Args:
      log_prob: f32[E], under the policy that learns. Differentiable.
      old_log_prob: f32[E], under the policy that acted; no gradient flows through it.
      trajectory: int32[E], a number per trajectory of the batch.
      mask: bool[E], True: counts. Masked entries may hold anything and get 0. Default: all.
      num_trajectories: static; if given, ids outside [0, num_trajectories) are masked and nothing is sorted.

    Returns:
      f32[E].

    Raises:
      ValueError: num_trajectories below 1.
      AssertionError: shapes or types that do not fit, when traced.
    """
    sizes = None if num_trajectories is None else (num_trajectories,)
    check_sizes(sizes, 1)
    chex.assert_rank(log_prob, 1)
    chex.assert_equal_shape([log_prob, trajectory])
    chex.assert_type(trajectory, int)
    inside = jnp.ones(trajectory.shape, bool) & in_range([trajectory], sizes)
    live, log_prob, old_log_prob = _masked(inside if mask is None else inside & mask, log_prob, old_log_prob)
    own = log_prob - lax.stop_gradient(old_log_prob)
    product = partition([trajectory], live, sizes).total(lax.stop_gradient(own))
    return jnp.where(live, _limited(product + (own - lax.stop_gradient(own))), 0.0)


def policy_loss(
    log_prob: jax.Array,
    log_ratio: jax.Array,
    advantage: jax.Array,
    mask: jax.Array | None = None,
    *,
    rule: str = "clip",
    low: float | None = 0.2,
    high: float | None = 0.2,
    dual: float | None = None,
) -> jax.Array:
    """Loss of each token, by one rule for its ratio rho = exp(log_ratio).

        "clip"            -min(rho advantage, clip(rho, 1 - low, 1 + high) advantage)
                          with dual: at most -dual advantage where advantage < 0
        "two_sided_mask"  -clip(rho, low, high) advantage
        "none"            -log_prob advantage

    "clip": PPO (arXiv 1707.06347); low and high apart: DAPO (arXiv 2503.14476); dual: Ye et al. 2020 (arXiv
    1912.09729). None for low and high: no clip, the plain importance ratio. "two_sided_mask": PARL (Kimi K2.5, arXiv
    2602.02276); it lets no gradient through outside [low, high], whatever the sign of the advantage. "none":
    REINFORCE (Williams 1992). Which ratio it is, of the token or of the trajectory, is the caller's choice.

    Args:
      log_prob: f32[...], under the policy that learns; read by "none". Differentiable.
      log_ratio: f32[...], of `token_log_ratio` or `trajectory_log_ratio`; read by the other rules. Differentiable.
      advantage: f32[...]; no gradient flows through it.
      mask: bool[...], True: counts. Masked entries may hold anything and get 0. Default: all.
      rule: one of `RULES`.
      low, high: "clip": how far the ratio may move, or both None; "two_sided_mask": the bounds of the ratio itself.
      dual: None, or above 1.

    Returns:
      f32[...].

    Raises:
      ValueError: an unknown rule, or bounds that do not fit it.
      AssertionError: shapes or types that do not fit, when traced.
    """
    choose("rule", rule, RULES)
    _check_bounds(rule, low, high, dual)
    live, log_prob, log_ratio, advantage = _masked(mask, log_prob, log_ratio, advantage)
    advantage = lax.stop_gradient(advantage)
    ratio = jnp.exp(log_ratio)
    if rule == "none":
        loss = -log_prob * advantage
    elif rule == "two_sided_mask":
        loss = -jnp.clip(ratio, low, high) * advantage
    else:
        loss = -ratio * advantage
        if low is not None and high is not None:
            loss = jnp.maximum(loss, -jnp.clip(ratio, 1 - low, 1 + high) * advantage)
        if dual is not None:
            loss = jnp.where(advantage < 0, jnp.minimum(loss, -dual * advantage), loss)
    return jnp.where(live, loss, 0.0)


def kl(
    log_prob: jax.Array, ref_log_prob: jax.Array, mask: jax.Array | None = None, *, estimator: str = "k3"
) -> jax.Array:
    """Estimate of KL(pi || pi_ref) from a token sampled from pi, with d = ref_log_prob - log_prob within +-20.

        k1 = -d      k2 = d^2 / 2      k3 = exp(d) - d - 1, at most 10

    Schulman 2020 (Approximating KL divergence); k3 in the loss: GRPO (arXiv 2402.03300). The limits are those of verl's
    released code for k3; here the one on d holds for all three. As a penalty in the reward use k1, as a term of the
    loss k3: the gradient of k1 has mean 0. PARL's tau (log ratio)^2 is 2 tau k2 against the policy that acted.

    Args:
      log_prob: f32[...], under the policy that learns. Differentiable.
      ref_log_prob: f32[...], under the reference; no gradient flows through it.
      mask: bool[...], True: counts. Masked entries may hold anything and get 0. Default: all.
      estimator: one of `ESTIMATORS`.

    Returns:
      f32[...].

    Raises:
      ValueError: an unknown estimator.
      AssertionError: shapes or types that do not fit, when traced.
    """
    choose("estimator", estimator, ESTIMATORS)
    live, log_prob, ref_log_prob = _masked(mask, log_prob, ref_log_prob)
    d = _limited(lax.stop_gradient(ref_log_prob) - log_prob)
    if estimator == "k1":
        value = -d
    elif estimator == "k2":
        value = jnp.square(d) / 2
    else:
        value = jnp.minimum(jnp.expm1(d) - d, K3_LIMIT)
    return jnp.where(live, value, 0.0)


def entropy(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Entropy in nats of the softmax over legal entries of the last axis: log Z - sum_a p_a x_a.

    x_a = logit - largest legal logit, Z = sum exp x_a. Exactly 0, with gradient 0, where one entry or none is legal.

    Args:
      logits: f32[..., A]; illegal ones may hold anything. Differentiable.
      legal: bool[..., A], True: can be chosen.

    Returns:
      f32[...].

    Raises:
      AssertionError: shapes or types that do not fit, when traced.
    """
    live, logits = _masked(legal, logits)
    top = jnp.max(logits, axis=-1, keepdims=True, where=live, initial=-jnp.inf)
    x = jnp.where(live, logits - lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0)), 0.0)
    mass = jnp.where(live, jnp.exp(x), 0.0)
    total = jnp.sum(mass, axis=-1)
    total = jnp.where(total > 0, total, 1.0)
    return jnp.log(total) - jnp.sum(mass * x, axis=-1) / total


def token_weights(
    tokens: jax.Array,
    trajectory: jax.Array,
    agent: jax.Array,
    mask: jax.Array | None,
    mode: str,
    *,
    sizes: tuple[int, int] | None = None,
    constant: float | None = None,
) -> jax.Array:
    """Weight of each token of each call in the loss; sum_e weight_e tokens_e = 1, except for "sum_constant".

    With n trajectories, L_i tokens in trajectory i, N_i agents with tokens in it, and L_ia tokens of agent a:

        "token_mean"     1 / sum_i L_i         all tokens alike: DAPO (arXiv 2503.14476), verl's default
        "sequence_mean"  1 / (n L_i)           trajectories alike, then tokens: GRPO (arXiv 2402.03300)
        "sum_constant"   1 / (n constant)      token sums over a constant: Dr. GRPO (arXiv 2503.20783)
        "agent_mean"     1 / (n N_i L_ia)      trajectories, then agents, then tokens: WideSeek-R1 (arXiv 2602.04634)

    "Sequence" is the trajectory here, with the calls of all agents, not the single call. n counts trajectories with a
    token. Where E are tokens, tokens is all ones.

    Args:
      tokens: f32[E] or int32[E], count of real tokens of each call; not positive and finite masks it.
      trajectory: int32[E], a number per trajectory of the batch: unlike in `normalise` it may not begin anew per group.
      agent: int32[E].
      mask: bool[E] or None, True: counts. Masked entries may hold anything and get 0.
      mode: one of `MODES`.
      sizes: static (num_agents, num_trajectories); if given, ids outside [0, size) are masked and nothing is sorted.
      constant: tokens, positive; needed and read for "sum_constant", such as the most tokens a trajectory may have.

    Returns:
      f32[E].

    Raises:
      ValueError: an unknown mode, or a constant missing or not positive where needed.
      AssertionError: shapes or types that do not fit, when traced.
    """
    choose("mode", mode, MODES)
    check_sizes(sizes, 2)
    divisor = constant if mode == "sum_constant" else 1.0
    if divisor is None or not 0 < divisor < float("inf"):
        raise ValueError(f"constant: got {constant!r}, allowed: a positive number where mode is 'sum_constant'")
    chex.assert_rank(tokens, 1)
    chex.assert_equal_shape([tokens, trajectory, agent] if mask is None else [tokens, trajectory, agent, mask])
    chex.assert_type([trajectory, agent], int)
    tokens = tokens.astype(jnp.float32)
    live = (tokens > 0) & jnp.isfinite(tokens) & in_range([agent, trajectory], sizes)
    live = live if mask is None else live & mask
    tokens = jnp.where(live, tokens, 0.0)
    rollout = partition([trajectory], live, None if sizes is None else sizes[1:])
    n = jnp.sum(rollout.first().astype(jnp.float32))
    if mode == "token_mean":
        whole = jnp.sum(tokens)
    elif mode == "sequence_mean":
        whole = n * rollout.total(tokens)
    elif mode == "sum_constant":
        whole = n * divisor
    else:
        seat = partition([agent, trajectory], live, sizes)  # an agent in a trajectory
        whole = n * rollout.total(seat.first().astype(jnp.float32)) * seat.total(tokens)
    return jnp.where(live, 1.0 / jnp.where(live, whole, 1.0), 0.0)


def _masked(mask: jax.Array | None, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The mask, and f32 arrays with 0 in place of what masked entries hold."""
    chex.assert_type(list(arrays), float)
    live = jnp.ones(arrays[0].shape, bool) if mask is None else mask
    chex.assert_equal_shape([*arrays, live])
    chex.assert_type(live, bool)
    return live, *(jnp.where(live, x.astype(jnp.float32), 0.0) for x in arrays)


def _limited(log_ratio: jax.Array) -> jax.Array:
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _check_bounds(rule: str, low: float | None, high: float | None, dual: float | None) -> None:
    """ValueError unless the bounds mean something under the rule."""
    if dual is not None and rule != "clip":
        raise ValueError(f"dual: got {dual!r}, allowed: None where rule is {rule!r}")
    if dual is not None and not 1 < dual < float("inf"):
        raise ValueError(f"dual: got {dual!r}, allowed: None or a number above 1")
    if rule == "none" or (rule == "clip" and low is None and high is None):
        return
    if low is None or high is None:
        raise ValueError(f"low, high: got {low!r}, {high!r}, allowed: two numbers (for rule 'clip' also two None)")
    number("low", low, 0.0, 1.0)
    number("high", high, 1.0 if rule == "two_sided_mask" else 0.0, 1e6)
