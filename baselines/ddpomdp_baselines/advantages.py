"""Advantages: scores centred and scaled over cells of a batch of calls, returns to go, and GAE.

Axes: E entries of a flat batch, one per call; T steps of a time-major array, T first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp.options import choose, number, whole
from ddpomdp.pytree import pytree
from ddpomdp_baselines.cells import Cells, check_sizes, in_range, partition

SCOPES = {  # columns whose ids the entries of a cell share
    "group": ("group",),
    "group_agent": ("group", "agent"),
    "group_role": ("group", "role"),
    "agent": ("agent",),
    "batch": (),
}
SAMPLES = ("trajectory", "call", "token")
CENTERS = ("mean", "leave_one_out", "none")
SCALES = ("std", "none")
FLAT = 1e-6  # spread, relative to max(1, |max|), up to which samples count as equal


@pytree
class Stats:
    """What `normalise` looked at. Shares are of unmasked calls; a batch without any has shares 0.

    A cell with one rollout is a singleton, whatever its values; zero_spread counts the other cells without spread. A
    call in a singleton of either scope counts there only, so the two shares add up to the share of calls given 0.
    """

    calls: jax.Array  # int32[], entries that are not masked
    samples: jax.Array  # f32[], samples of the centre scope: trajectories (once per cell), calls or tokens
    cells: jax.Array  # int32[], cells looked at; a scope that both centres and scales counts once
    singletons: jax.Array  # int32[], of those: cells with fewer than two distinct trajectories
    singleton_share: jax.Array  # f32[], calls in them
    zero_spread: jax.Array  # int32[], cells with two or more trajectories and one outcome
    zero_spread_share: jax.Array  # f32[], calls in them
    mixed_share: jax.Array  # f32[], of all calls: in a zero-spread cell though their group has spread
    inflation: jax.Array  # f32[E], factor of the entry's (group, agent) cell, 0 where masked
    inflation_mean: jax.Array  # f32[], over (group, agent) cells with an entry not given 0; 0 if there is none
    inflation_max: jax.Array  # f32[], largest factor


@dataclass(frozen=True)
class _Batch:
    """Calls after masking: dead entries hold value 0, share 0 and count 0."""

    value: jax.Array  # f32[E]
    share: jax.Array  # f32[E], of a call or token in the statistics
    count: jax.Array  # f32[E], samples the entry stands for
    live: jax.Array  # bool[E]
    ids: dict[str, jax.Array]  # int32[E] each
    sizes: dict[str, int] | None

    def cells(self, columns: Iterable[str]) -> Cells:
        """The cells that `columns` name."""
        names = tuple(columns)
        sizes = None if self.sizes is None else [self.sizes[name] for name in names]
        return partition([self.ids[name] for name in names], self.live, sizes)


@dataclass(frozen=True)
class _Look:
    """The samples of one scope and their statistics, [E] each: what the cell of an entry says."""

    score: jax.Array  # f32, the entry's sample
    count: jax.Array  # f32, samples the entry stands for
    first: jax.Array  # bool, the entry that stands for its cell
    singleton: jax.Array  # bool, fewer than two distinct trajectories
    flat: jax.Array  # bool, two or more of them without spread
    minus_mean: jax.Array  # f32, score - mean of the cell's samples
    minus_others: jax.Array  # f32, score - mean of the samples of other trajectories
    std: jax.Array  # f32, positive


def normalise(
    value: jax.Array,
    *,
    trajectory: jax.Array,
    group: jax.Array,
    agent: jax.Array,
    role: jax.Array | None = None,
    tokens: jax.Array | None = None,
    weight: jax.Array | None = None,
    mask: jax.Array | None = None,
    sample: str = "call",
    center: str = "mean",
    center_scope: str = "group",
    scale: str = "std",
    scale_scope: str = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    sizes: tuple[int, int, int] | None = None,
) -> tuple[jax.Array, Stats]:
    """Advantage of each call: its sample, centred in one kind of cell and scaled in the same or another kind.

        advantage = (score - centre) / (std + eps)      std^2 = n / (n - ddof) * sum_j p_j (x_j - sum_j p_j x_j)^2

    over the samples x_j of the entry's cell, with p_j their shares (sum 1) and n their number:

    - sample "call": one per entry, p ~ weight.
    - sample "token": one per token, all with the value of their call, p ~ weight; n counts tokens.
    - sample "trajectory": one per trajectory in the cell, the mean of its entries there (by weight), all p equal.

    score is the sample of the centre scope. centre is the mean of that cell's samples, or ("leave_one_out") the mean of
    those of other trajectories: calls of the entry's own trajectory share its luck and are left out with it. A scope
    whose center or scale is "none" is not looked at, except that center_scope still says over which of its calls a
    trajectory's score is taken. A cell looked at with fewer than two distinct trajectories, or with
    max - min <= 1e-6 max(1, |max|) among its samples, gives exactly 0.

    A trajectory is named by (group, trajectory), so its numbers may begin anew in every group.

    Sources: GRPO (Shao et al. 2024, arXiv 2402.03300), mean only: Dr. GRPO (Liu et al. 2025, arXiv 2503.20783),
    leave-one-out: RLOO (Ahmadian et al. 2024, arXiv 2402.14740), per agent: Dr. MAS (Feng et al. 2026, arXiv
    2602.08847), over the batch: REINFORCE++ (Hu 2025, arXiv 2501.03262). The released code of the first and of Dr. MAS
    passes the raw value of a lone sample on and divides by eps alone where a cell has one outcome and another mean;
    here both give 0.

    Inflation factor of a (group, agent) cell: the mean of advantage^2 over its calls (by weight, and by tokens if they
    are the samples), the factor on the second moment of the agent's score function. With mean and std of the group over
    trajectory samples, ddof 0 and eps 0, it is [sigma_k^2 + (mu_k - mu)^2] / sigma^2 of Dr. MAS, Lemma 4.2, and then at
    most G - 1 for G trajectories; with mean and std of the agent's own calls it is 1. It has the unit of value^2
    where scale is "none".

    Args:
      value: f32[E], one per call; finite where not masked (a NaN stays in its cells). Differentiable.
      trajectory, group, agent: int32[E], any values.
      role: int32[E], needed for scope "group_role".
      tokens: f32[E] or int32[E], needed and read for sample "token"; fewer than one masks the entry.
      weight: f32[E], share of an entry in the statistics, in any unit; not positive and finite masks it. Default 1.
      mask: bool[E], True: counts. Masked entries enter nothing, whatever they hold, and get 0.
      sample, center, center_scope, scale, scale_scope: `SAMPLES`, `CENTERS`, `SCOPES`, `SCALES`, `SCOPES`.
      ddof: 0 or 1.
      eps: added outside the root.
      sizes: static (num_groups, num_agents, num_trajectories). Ids then lie in [0, size), those of roles in
        [0, num_agents), and other entries are masked: no sorting is needed. Memory is that of the product.

    Returns:
      f32[E] and `Stats`, through which no gradient flows.

    Raises:
      ValueError: an unknown option, or tokens or role missing where needed.
      AssertionError: shapes or types that do not fit, when traced.
    """
    _check(sample, center, center_scope, scale, scale_scope, ddof, eps, sizes)
    scopes = (center_scope,) if scale == "none" else (center_scope, scale_scope)
    role = _needed("role", role, "group_role" in scopes, "a scope is 'group_role'")
    tokens = _needed("tokens", tokens, sample == "token", "sample is 'token'")
    batch = _batch(value, {"group": group, "agent": agent, "trajectory": trajectory}, role, tokens, weight, mask, sizes)
    looks = {scope: _look(batch, scope, sample, ddof) for scope in dict.fromkeys((*scopes, "group"))}
    middle = looks[center_scope]
    advantage = {"mean": middle.minus_mean, "leave_one_out": middle.minus_others, "none": middle.score}[center]
    if scale == "std":
        advantage = advantage / (looks[scale_scope].std + eps)
    looked_at = [s for s, how in ((center_scope, center), (scale_scope, scale)) if how != "none"]
    looked = [looks[scope] for scope in dict.fromkeys(looked_at)]
    for look in looked:
        advantage = jnp.where(look.singleton | look.flat, 0.0, advantage)
    advantage = jnp.where(batch.live, advantage, 0.0)
    return advantage, lax.stop_gradient(_stats(batch, looked, looks["group"], middle, advantage))


def _check(sample, center, center_scope, scale, scale_scope, ddof, eps, sizes) -> None:
    choose("sample", sample, SAMPLES)
    choose("center", center, CENTERS)
    choose("center_scope", center_scope, SCOPES)
    choose("scale", scale, SCALES)
    choose("scale_scope", scale_scope, SCOPES)
    whole("ddof", ddof, 0, 1)
    number("eps", eps, 0.0, 1.0)
    check_sizes(sizes, 3)


def _needed(name: str, array: jax.Array | None, needed: bool, when: str) -> jax.Array | None:
    """The array where it is needed, None where it is not; ValueError where it is needed and missing."""
    if needed and array is None:
        raise ValueError(f"{name}: got None, allowed: an array [E] where {when}")
    return array if needed else None


def _batch(value, ids, role, tokens, weight, mask, sizes) -> _Batch:
    """Mask entries by mask, weight, tokens and ids out of range, and blank what masked entries hold."""
    if role is not None:
        ids = ids | {"role": role}
    names = {"group": 0, "agent": 1, "role": 1, "trajectory": 2}
    bounds = None if sizes is None else {name: sizes[names[name]] for name in ids}
    chex.assert_rank(value, 1)
    chex.assert_type(value, float)
    chex.assert_type(list(ids.values()), int)
    given = [x for x in (tokens, weight, mask) if x is not None]
    chex.assert_equal_shape([value, *ids.values(), *given])
    live = jnp.ones(value.shape, bool) if mask is None else mask
    chex.assert_type(live, bool)
    live = live & in_range(list(ids.values()), None if bounds is None else list(bounds.values()))
    count = jnp.ones(value.shape, jnp.float32) if tokens is None else tokens.astype(jnp.float32)
    share = jnp.ones(value.shape, jnp.float32) if weight is None else weight.astype(jnp.float32)
    live = live & (count >= 1) & jnp.isfinite(count) & (share > 0) & jnp.isfinite(share)
    blank = lambda x: jnp.where(live, x, 0.0)  # noqa: E731
    ids = {name: x.astype(jnp.int32) for name, x in ids.items()}
    return _Batch(blank(value.astype(jnp.float32)), blank(share * count), blank(count), live, ids, bounds)


def _mean(x: jax.Array, share: jax.Array, cells: Cells, live: jax.Array) -> jax.Array:
    """Mean by share in each entry's cell: exactly x where all are equal, as the smallest is set apart."""
    low = lax.stop_gradient(cells.least(x))
    return low + cells.total(share * (x - low)) / jnp.where(live, cells.total(share), 1.0)


def _look(batch: _Batch, scope: str, sample: str, ddof: int) -> _Look:
    """Statistics of a scope's cells. Sums run over residuals in units of the cell's spread: no scale overflows them."""
    live = batch.live
    cells = batch.cells(SCOPES[scope])
    own = batch.cells(dict.fromkeys((*SCOPES[scope], "group", "trajectory")))
    stands = own.first().astype(jnp.float32)  # for its trajectory in this cell
    score, share, count = batch.value, batch.share, batch.count
    if sample == "trajectory":
        score, share, count = _mean(score, share, own, live), stands, stands
    low, high = lax.stop_gradient((cells.least(score), cells.most(score)))
    singleton = cells.total(stands) < 2
    flat = ~singleton & (high - low <= FLAT * jnp.maximum(1.0, jnp.abs(high)))
    counts = live & ~singleton & ~flat

    # Results depend on neither `near` nor `unit`, so no gradient is lost with them.
    unit = jnp.where(counts, high - low, 1.0)
    near = lax.stop_gradient(low + unit * _mean((score - low) / unit, share, cells, live))
    residual = (score - near) / unit
    whole_share, whole_sum = cells.total(share), cells.total(share * residual)
    safe_share = jnp.where(live, whole_share, 1.0)
    mean = whole_sum / safe_share
    other_share = whole_share - own.total(share)
    others = (whole_sum - own.total(share * residual)) / jnp.where(other_share > 0, other_share, 1.0)
    n = jnp.where(counts, cells.total(count), 2.0)
    square = cells.total(share * jnp.square(residual - mean)) / safe_share
    std = unit * jnp.sqrt(jnp.where(counts, square * n / (n - ddof), 1.0))
    return _Look(
        score, count, cells.first(), singleton, flat, unit * (residual - mean), unit * (residual - others), std
    )


def _stats(batch: _Batch, looked: list[_Look], group: _Look, middle: _Look, advantage: jax.Array) -> Stats:
    """Counts of what was looked at."""
    number_of = lambda x: jnp.sum(x & batch.live, dtype=jnp.int32)  # noqa: E731
    calls = number_of(batch.live)
    share_of = lambda x: number_of(x) / jnp.maximum(calls, 1)  # noqa: E731
    nowhere, nothing = jnp.zeros_like(batch.live), jnp.zeros((), jnp.int32)
    singleton = sum((look.singleton for look in looked), start=nowhere)
    flat = sum((look.flat for look in looked), start=nowhere) & ~singleton
    mixed = ~group.singleton & ~group.flat
    agents = batch.cells(SCOPES["group_agent"])
    inflation = agents.total(batch.share * jnp.square(advantage))
    inflation = jnp.where(batch.live, inflation / jnp.where(batch.live, agents.total(batch.share), 1.0), 0.0)
    heard = agents.first() & (agents.total((batch.live & ~singleton & ~flat).astype(jnp.int32)) > 0)
    return Stats(
        calls=calls,
        samples=jnp.sum(middle.count),
        cells=sum((number_of(look.first) for look in looked), start=nothing),
        singletons=sum((number_of(look.first & look.singleton) for look in looked), start=nothing),
        singleton_share=share_of(singleton),
        zero_spread=sum((number_of(look.first & look.flat) for look in looked), start=nothing),
        zero_spread_share=share_of(flat),
        mixed_share=share_of(flat & mixed),
        inflation=inflation,
        inflation_mean=jnp.sum(jnp.where(heard, inflation, 0.0)) / jnp.maximum(number_of(heard), 1),
        inflation_max=jnp.max(inflation, initial=0.0),
    )


def returns_to_go(
    reward: jax.Array,
    ends: jax.Array | None = None,
    discount: float | jax.Array = 1.0,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Return from each step on: return_t = reward_t + discount (1 - ends_t) return_t', t' the next unmasked step.

    Sutton and Barto 2018, eq. 3.9. A masked step is no step: its reward and its end are not read, no discount passes
    over it, and it gets 0. So a life that is born late or dies early needs no other care.

    Args:
      reward: f32[T, ...], time first.
      ends: bool[T, ...], True: nothing after this step belongs to it. Default: no step ends.
      discount: number, or array that broadcasts to reward; per unmasked step.
      mask: bool[T, ...], True: counts. Default: all.

    Returns:
      f32[T, ...].

    Raises:
      AssertionError: shapes or types that do not fit, when traced.
    """
    live, go_on, reward = _steps(reward, ends, mask)
    go_on = discount * go_on

    def back(later, step):
        reward, go_on, live = step
        now = reward + jnp.where(go_on != 0, go_on * later, 0.0)  # not even a NaN crosses an end
        return jnp.where(live, now, later), jnp.where(live, now, 0.0)

    return lax.scan(back, jnp.zeros_like(reward[0]), (reward, go_on, live), reverse=True)[1]


def gae(
    reward: jax.Array,
    value: jax.Array,
    bootstrap: jax.Array,
    ends: jax.Array | None = None,
    *,
    discount: float | jax.Array = 1.0,
    decay: float | jax.Array = 0.95,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage of each step, and the critic's target.

        delta_t = reward_t + discount (1 - ends_t) value_t' - value_t
        advantage_t = delta_t + discount decay (1 - ends_t) advantage_t'        target_t = advantage_t + value_t

    t' is the next unmasked step, or bootstrap (with advantage 0) after the last. Schulman et al. 2016, arXiv
    1506.02438; decay is their lambda. A masked step is no step: nothing it holds is read, nothing decays over it, and
    it gets 0 twice. A step that was cut off, not finished, ends too: its reward should hold discount x the value of
    the state it was cut off in.

    Args:
      reward: f32[T, ...], time first.
      value: f32[T, ...], the critic's value before each step. Gradients flow through it: stop them where a target is.
      bootstrap: f32[...], value of the state after the last step; read where no end came before it.
      ends: bool[T, ...], True: nothing after this step belongs to it. Default: no step ends.
      discount, decay: numbers, or arrays that broadcast to reward; per unmasked step.
      mask: bool[T, ...], True: counts. Default: all.

    Returns:
      advantage f32[T, ...] and target f32[T, ...].

    Raises:
      AssertionError: shapes or types that do not fit, when traced.
    """
    chex.assert_equal_shape([reward, value])
    chex.assert_shape(bootstrap, reward.shape[1:])
    chex.assert_type([value, bootstrap], float)
    live, go_on, reward = _steps(reward, ends, mask)
    value = jnp.where(live, value.astype(jnp.float32), 0.0)
    go_on = discount * go_on

    def back(later, step):
        later_value, later_advantage = later
        reward, value, go_on, decays, live = step
        coming = go_on * (later_value + decays * later_advantage)
        advantage = reward - value + jnp.where(go_on != 0, coming, 0.0)  # not even a NaN crosses an end
        kept = jnp.where(live, value, later_value), jnp.where(live, advantage, later_advantage)
        return kept, jnp.where(live, advantage, 0.0)

    start = bootstrap.astype(jnp.float32), jnp.zeros_like(reward[0])
    decays = jnp.broadcast_to(jnp.asarray(decay, jnp.float32), reward.shape)
    advantage = lax.scan(back, start, (reward, value, go_on, decays, live), reverse=True)[1]
    return advantage, advantage + value


def _steps(reward, ends, mask) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(live, 1 where a step goes on, reward without what masked steps hold), all in the shape of reward."""
    chex.assert_type(reward, float)
    live = jnp.ones(reward.shape, bool) if mask is None else mask
    ends = jnp.zeros(reward.shape, bool) if ends is None else ends
    chex.assert_equal_shape([reward, ends, live])
    chex.assert_type([ends, live], bool)
    return live, (~ends).astype(jnp.float32), jnp.where(live, reward.astype(jnp.float32), 0.0)
