"""Numbers a user may change or vmap over without recompiling: prices, reward weights, service and task laws."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.options import UsageError, choose, refusal
from ddpomdp.pytree import pytree
from ddpomdp.timestep import CHANNELS

TABLE = 1024  # places of a quantile table


def lognormal_table(sigma: float, *, median: float | None = None, mean: float | None = None) -> np.ndarray:
    """f64[1024]: quantiles of a log-normal at (i + 1/2) / 1024, by its median or its mean.

    Latencies and lengths are looked up by ten random bits, so that they are the same integers on every device.
    """
    if median is not None and mean is None:
        mu = np.log(median)
    elif mean is not None and median is None:
        mu = np.log(mean) - sigma**2 / 2
    else:
        raise ValueError(f"give either median or mean, got median={median}, mean={mean}")
    quantiles = [NormalDist().inv_cdf((i + 0.5) / TABLE) for i in range(TABLE)]
    return np.exp(mu + sigma * np.asarray(quantiles))


def confidence_table(bias: float, skill: float) -> jax.Array:
    """int32[2,1024] in 2**-16: confidences stated with wrong and with right answers, by ten random bits.

    Quantiles of sigmoid(bias + skill * right + standard normal), each moved to the nearest of the 64ths that both rows
    have: whoever knows the tables by heart reads odds off a confidence, never the truth (decision note 0031).
    """
    normal = np.log(lognormal_table(1.0, median=1.0))
    stated = 1.0 / (1.0 + np.exp(-(bias + skill * np.arange(2)[:, None] + normal)))
    shared = np.intersect1d(*np.rint(64 * stated))
    nearest = np.abs(64 * stated[..., None] - shared).argmin(-1)
    return jnp.asarray(shared[nearest] * 2**10, jnp.int32)


@pytree
class Service:
    """How long calls take. Sources: LLMPerf raw requests (2024-01) and search-API glossaries (2026)."""

    ttft_ms: jax.Array  # int32[1024] quantiles of the time to first token
    tool_ms: jax.Array  # int32[1024] quantiles of a tool call
    token_us: jax.Array  # int32[]     microseconds per output token
    stall: jax.Array  # f32[]       probability that a call stalls
    stall_low_ms: jax.Array  # int32[]
    stall_span_ms: jax.Array  # int32[]     stalls are uniform in [low, low + span)
    idle_ms: jax.Array  # int32[]     a wait with nothing to wait for
    wait_limit_ms: jax.Array  # int32[]     deadline of a wait


@pytree
class Charges:
    """What orchestration calls cost in tokens, and in critical steps (thousandths)."""

    brief_tokens: jax.Array  # int32[3]    per child, by level
    plan_tokens: jax.Array  # int32[]     first hand-out of a life
    plan_steps: jax.Array  # int32[]
    child_steps: jax.Array  # int32[]     per child handed work
    hand_tokens: jax.Array  # int32[]     spawn, delegate
    send_tokens: jax.Array  # int32[]     message, return
    claim_tokens: jax.Array  # int32[2]    per claim, by detail
    despawn_tokens: jax.Array  # int32[]
    aggregate_tokens: jax.Array  # int32[]
    row_tokens: jax.Array  # int32[]     aggregate, per row with a known claim
    aggregate_steps: jax.Array  # int32[]
    detail_tokens: Any = None  # int32[D]    message, return: more, by detail; None: nothing


@pytree
class Reading:
    """Aggregation overload: what reading costs a reader's attention."""

    per_message: jax.Array  # f32[]       load per return or message read
    per_claim: jax.Array  # f32[2]      load per claim, by detail
    capacity: jax.Array  # f32[]       a claim survives if its luck < min(1, capacity / load)
    per_detail: Any = None  # f32[D]      load per return or message beside, by detail; None: nothing

    def load(self, count: jax.Array, detail: jax.Array) -> jax.Array:
        """f32[N]: what messages of int32[N] claims at int32[N] levels of detail weigh."""
        load = self.per_message + count.astype(jnp.float32) * self.per_claim[detail]
        return load if self.per_detail is None else load + self.per_detail[detail]


@pytree
class Params:
    """All numbers of an environment that do not change shapes."""

    weights: dict[str, jax.Array]  # f32[] per channel
    price_token: jax.Array  # f32[]       quality points per token
    price_second: jax.Array  # f32[]       quality points per second of wall-clock
    service: Service
    charges: Charges
    reading: Reading
    task: Any


def service(
    *,
    ttft_median_s: float = 0.4,
    ttft_sigma: float = 0.25,
    tool_median_s: float = 0.6,
    tool_sigma: float = 0.63,
    tokens_per_s: float = 50.0,
    stall: float = 0.007,
    stall_s: tuple[float, float] = (60.0, 100.0),
    idle_ms: int = 1_000,
    wait_limit_ms: int = 600_000,
) -> Service:
    """The common service law: time to first token + tokens / rate (+ tool time), with rare stalls."""
    ints = lambda table: jnp.asarray(np.maximum(np.rint(1000 * table), 1), jnp.int32)  # noqa: E731
    if idle_ms < 1 or wait_limit_ms < 1:
        raise ValueError(f"idle_ms and wait_limit_ms must be at least 1, got {idle_ms} and {wait_limit_ms}")
    return Service(
        ttft_ms=ints(lognormal_table(ttft_sigma, median=ttft_median_s)),
        tool_ms=ints(lognormal_table(tool_sigma, median=tool_median_s)),
        token_us=jnp.int32(round(1e6 / tokens_per_s)),
        stall=jnp.float32(stall),
        stall_low_ms=jnp.int32(round(1000 * stall_s[0])),
        stall_span_ms=jnp.int32(round(1000 * (stall_s[1] - stall_s[0]))),
        idle_ms=jnp.int32(idle_ms),
        wait_limit_ms=jnp.int32(wait_limit_ms),
    )


@dataclass(frozen=True)
class RewardSpec:
    """Reward = sum of weight x channel. Schedules are applied by the trainer, which passes weights per update."""

    weights: Mapping[str, float] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Refuse unknown channels."""
        for name in (*self.weights, *self.schedule):
            if name not in CHANNELS:
                raise UsageError(refusal("channel", name, CHANNELS))

    def arrays(self) -> dict[str, jax.Array]:
        """f32[] weight of every channel."""
        return {name: jnp.float32(self.weights.get(name, 0.0)) for name in CHANNELS}


REWARDS = {
    "outcome": RewardSpec({"team": 1.0}),
    "parl": RewardSpec({"team": 1.0, "orchestration_parallel": 0.3, "orchestration_finish": 0.2}),
    "parl_annealed": RewardSpec(
        {"team": 1.0, "orchestration_parallel": 0.3, "orchestration_finish": 0.2},
        schedule={"orchestration_parallel": ("linear", 0.5), "orchestration_finish": ("linear", 0.5)},
    ),
    "mappa": RewardSpec({"process": 1.0}),
    "role": RewardSpec({"team": 1.0, "role": 1.0}),
    "tool": RewardSpec({"team": 1.0, "tool": 1.0}),
    "debate": RewardSpec({"team": 1.0, "debate": 1.0}),
    "hybrid": RewardSpec({"team": 1.0, "individual": 0.5, "tool": 1.0, "process": 0.1}),
}


def reward_spec(reward: str | RewardSpec) -> RewardSpec:
    """A RewardSpec by preset name; ValueError lists the presets."""
    if isinstance(reward, RewardSpec):
        return reward
    choose("reward", reward, REWARDS)
    return REWARDS[reward]
