"""The truth of a decision, E[R | d], and how well a credit points at it.

Axis letters: B episode, T tick, N slot, A argument position, K alternative.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.credit import table, units
from ddpomdp.credit.assign import ALTERNATIVES, SAMPLES, counterfactual
from ddpomdp.credit.plays import Ordinary, Player, player
from ddpomdp.enums import CreditUnit, Decision
from ddpomdp.env import Env
from ddpomdp.options import UsageError, choose, refusal, whole
from ddpomdp.params import Params
from ddpomdp.rollouts import branch
from ddpomdp.state import State

MEASURED = ("shared", "leave_one_out", "counterfactual", "removal", "return_to_go")
Z95 = 1.6448536269514722  # standard normal quantile of 0.95
TRIES = 16  # draws among which an alternative that differs from the turn is looked for


def expected_return(
    env: Env,
    state: State,
    slot: jax.Array | int,
    turn: jax.Array,
    policy: Any,
    params: Any,
    key: jax.Array,
    samples: int,
    *,
    memory: Any = None,
    num_ticks: int | None = None,
    env_params: Params | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(mean f32[], standard error f32[]) of the team's return E[R | state, turn] over fresh luck; jittable.

    With the same key two turns meet the same luck, so the difference of their means is the effect with common luck.

    Args:
      env: the environment.
      state: where the decision is taken.
      slot: who decides.
      turn: int32[1+A].
      policy: plays everyone else, and everyone afterwards.
      params: its parameters.
      key: draws the luck.
      samples: static, how many episodes; the standard error needs 2.
      memory: the policy's memory at `state`; default a newborn's.
      num_ticks: ticks to play at most; default the horizon.
      env_params: numbers to use instead of `env.params`.
    """
    whole("samples", samples, 1, 10_000_000)
    luck = jax.random.split(key, samples)
    more = {"memory": memory, "num_ticks": num_ticks, "env_params": env_params}
    returns = branch(env, state, slot, jnp.asarray(turn)[None], policy, params, luck, **more)[0]
    ddof = min(samples - 1, 1)
    return jnp.mean(returns), jnp.std(returns, ddof=ddof) / jnp.sqrt(jnp.float32(samples))


def snr(
    env: Env,
    policy: Any,
    params: Any,
    key: jax.Array,
    *,
    decision: Decision | str | int,
    unit: CreditUnit | int,
    estimator: str,
    episodes: int,
    samples: int = SAMPLES,
    alternatives: str = "policy",
    env_params: Params | None = None,
) -> dict[str, float]:
    """Signal-to-noise of a credit at the middle decision of a kind in each episode.

    delta    = mean of R(d1) - R(d0): forced branches with common luck at `episodes` contexts, where d0 and d1 are the
               turn that was made and an alternative to it, d1 the later one in order of tokens
    sigma    = spread of the credit given the alternative, over `episodes` ordinary episodes, never the same ones:
               sigma^2 = sum_i P(d_i) Var(A | d_i)
    d        = delta / sigma
    rho      = sqrt(p (1 - p)) delta / sqrt(p (1 - p) delta^2 + sigma^2), p = P(d1), the correlation of the credit
               with the true advantage; 0 where delta is
    n95      = max(1, 1.645^2 / (p (1 - p) d^2)), rollouts for the right sign with probability 0.95
    z_one    = d sqrt(n) / 2 with the n credits of this decision that the ticks of `episodes` ordinary episodes buy
    z_all    = the same if every such decision of an episode is credited
    coupling = share of later events that differ between the two branches, by life and own turn

    Arguments and sources: docs/credit.md. Averaged over contexts, effects of decisions that are not alike cancel;
    delta is then small although single decisions matter.

    Args:
      env: the environment.
      policy: what plays.
      params: its parameters.
      key: draws everything.
      decision: `Decision`, its name, or "tool": calls of the task's own tools.
      unit: unit of the estimator.
      estimator: one whose credit differs between two alternatives as the return does.
      episodes: ordinary episodes, and as many contexts of forced branches.
      samples: other episodes of `leave_one_out`, alternatives of `counterfactual`.
      alternatives: whether the policy draws alternatives, or all legal tokens are equally likely.
      env_params: numbers to use instead of `env.params`.

    Returns:
      delta, stderr (of delta), sigma, d, rho, n95, z_one, z_all, coupling, n (contexts with an alternative), p,
      ticks (per ordinary episode).

    Raises:
      ValueError: an estimator without that unit or property, or no decision of this kind in any episode.
    """
    _, unit = table.find(estimator, unit)
    measurable(estimator)
    wanted = units.decision_kind(decision)
    choose("alternatives", alternatives, ALTERNATIVES)
    whole("episodes", episodes, 4, 10_000_000)
    whole("samples", samples, 1, 1_000_000)
    plays = player(env, policy, params, env_params)
    if estimator == "return_to_go" and any(float(w) for n, w in plays.env_params.weights.items() if n != "team"):
        raise UsageError("estimator 'return_to_go': reward has channels beside team; snr measures the team's return")
    found = signals(plays, key, wanted, (estimator,), episodes, samples, uniform=alternatives == "uniform")[estimator]
    delta, sigma, p, ticks = (found[name] for name in ("delta", "sigma", "p", "ticks"))
    share = p * (1 - p)
    d = effect_size(delta, sigma)
    total = math.sqrt(share * delta**2 + sigma**2)
    z = lambda extra: 0.5 * d * math.sqrt(episodes / (1 + extra)) if d else 0.0  # noqa: E731
    return {
        "delta": delta,
        "stderr": found["stderr"],
        "sigma": sigma,
        "d": d,
        "rho": math.sqrt(share) * delta / total if total > 0 else 0.0,
        "n95": max(1.0, Z95**2 / (share * d**2)) if d and share else math.inf,
        "z_one": z(found["extra_one"]),
        "z_all": z(found["extra_all"]),
        "coupling": found["coupling"],
        "n": found["n"],
        "p": p,
        "ticks": ticks,
    }


def measurable(estimator: str) -> None:
    """ValueError unless the estimator's credit differs between two alternatives as the return does."""
    if estimator not in MEASURED:
        raise UsageError(refusal("estimator of snr", estimator, MEASURED))


def effect_size(delta: float, sigma: float) -> float:
    """d = delta / sigma; infinite where a credit has no spread, 0 where delta is."""
    return delta / sigma if sigma > 0 else (math.copysign(math.inf, delta) if delta else 0.0)


def signals(
    plays: Player,
    key: jax.Array,
    wanted: Decision | str,
    estimators: tuple[str, ...],
    episodes: int,
    samples: int,
    *,
    uniform: bool,
    before: int = 0,
) -> dict[str, dict[str, float]]:
    """What `snr` is made of, for several estimators from the same episodes.

    Args:
      plays: what plays.
      key: draws everything.
      wanted: kind of decision.
      estimators: of `MEASURED`.
      episodes: ordinary episodes, and as many contexts of forced branches.
      samples: other episodes of `leave_one_out`, alternatives of `counterfactual`.
      uniform: whether alternatives are any legal tokens, not the policy's draws.
      before: how many decisions of the kind before the middle one the context is.

    Returns:
      By estimator: delta, stderr, sigma, p, coupling, n, ticks as `snr` says; sides (how many of the two alternatives
      sigma is from); many (decisions of the kind per episode); decisions (of all kinds); extra_one, extra_all: what a
      credit of one such decision, or of all in an episode, costs beyond it, in episodes.
    """
    keys = jax.random.split(key, 2 * episodes)
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)

    # The effect: forced branches.
    forced = Contexts(plays, keys[episodes:], luck[episodes:], wanted, uniform, before)
    later, earlier = forced.pair()
    first, second = (forced.play(turn) for turn in (later, earlier))
    effect = first.returns.astype(np.float64) - second.returns
    stderr = float(effect.std(ddof=1) / math.sqrt(len(effect))) if len(effect) > 1 else 0.0
    coupling = np.mean([_differ(a[1:], b[1:]) for a, b in zip(first.log, second.log, strict=True)])  # later ticks

    # The spread: ordinary episodes.
    usual = Contexts(plays, keys[:episodes], luck[:episodes], wanted, uniform, before)
    is_later = _after(usual.turn, usual.other)
    count, episode_ticks = len(usual.ordinary.ticks), float(usual.ordinary.ticks.mean())
    many = float(usual.found.sum() / count)
    found = {}
    for estimator in estimators:
        credit, per_credit = _credits(usual, estimator, samples, uniform)
        parts = [x for x in (credit[is_later == side] for side in (False, True)) if len(x) > 1]
        extra = per_credit / episode_ticks
        found[estimator] = {
            "delta": float(effect.mean()),
            "stderr": stderr,
            "sigma": math.sqrt(sum(len(x) / len(credit) * x.var(ddof=1) for x in parts)),
            "sides": float(len(parts)),
            "coupling": float(coupling),
            "n": float(len(effect)),
            "p": float(np.mean(np.concatenate([is_later, _after(forced.turn, forced.other)]))),
            "ticks": episode_ticks,
            "many": many,
            "decisions": float(usual.ordinary.decides.sum() / count),
            "extra_one": extra,
            # Other episodes serve all decisions of this one; branches serve one each.
            "extra_all": extra if estimator == "leave_one_out" else extra * many,
        }
    return found


class Contexts:
    """The middle decision of a kind in each of many episodes that has one, with an alternative to it."""

    def __init__(
        self,
        plays: Player,
        keys: jax.Array,
        luck: jax.Array,
        wanted: Decision | str,
        uniform: bool,
        before: int = 0,
    ):
        """Play the episodes and find the decisions, or those so many of the kind `before` the middle one."""
        self.plays, self.ordinary = plays, plays.ordinary(keys, luck)
        ordinary: Ordinary = self.ordinary
        self.found = units.decision_mask(ordinary.decides, ordinary.kind, ordinary.decision, wanted)
        picks = [
            (b, *np.argwhere(found)[max(found.sum() // 2 - before, 0)])
            for b, found in enumerate(self.found)
            if found.any()
        ]
        if not picks:
            name = wanted if isinstance(wanted, str) else wanted.name.lower()
            raise UsageError(f"decision: no {name} decision in {len(self.found)} episodes of this policy")
        episode, tick, slot = np.asarray(picks).T
        turn = ordinary.tokens[episode, tick, slot]
        moment = plays.advance(keys[episode], luck[episode], tick)
        draws = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 6), TRIES))(luck[episode])
        other, is_other = _first_other(plays.alternatives(draws, moment, slot, uniform), turn)
        if not uniform and not is_other.all():  # the policy has only this turn: any other legal one
            legal, has = _first_other(plays.alternatives(draws, moment, slot, True), turn)
            other, is_other = np.where(is_other[:, None], other, legal), is_other | has
        if not is_other.any():
            raise UsageError("decision: no alternative was found at any decision of this kind")
        keep = np.flatnonzero(is_other)
        self.moment = moment.at(keep)
        self.episode, self.tick, self.slot = episode[keep], tick[keep], slot[keep]
        self.turn, self.other, self.keys, self.luck = turn[keep], other[keep], keys[episode[keep]], luck[episode[keep]]
        self.returns = ordinary.returns[self.episode].astype(np.float64)

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """(later, earlier) int32[B, 1+A] of the two turns in order of tokens."""
        after = _after(self.turn, self.other)[:, None]
        return np.where(after, self.turn, self.other), np.where(after, self.other, self.turn)

    def play(self, turn: np.ndarray) -> Any:
        """The episodes from these decisions on with other turns and their own luck."""
        return self.plays.play_on(self.moment, self.luck, self.slot, turn)


def _credits(usual: Contexts, estimator: str, samples: int, uniform: bool) -> tuple[np.ndarray, float]:
    """(credit f64[B] of each context's own decision, ticks that one of them costs beyond its episode)."""
    if estimator == "leave_one_out":
        lucks = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 3), samples))(usual.luck)
        count = len(usual.returns)
        many = jax.tree.map(lambda x: x.reshape(count * samples, *x.shape[2:]), lucks)
        others = usual.plays.ordinary(usual.keys[np.repeat(np.arange(count), samples)], many)
        return usual.returns - others.returns.reshape(count, samples).mean(axis=1), float(others.ticks.sum() / count)
    if estimator == "counterfactual":
        args = usual.moment, usual.luck, usual.slot, usual.turn, usual.returns, samples, uniform
        worth = counterfactual(usual.plays, *args)
        return worth.value, worth.ticks / len(worth.value)
    if estimator == "removal":
        played = usual.play(np.zeros_like(usual.turn))
        return usual.returns - played.returns, float(played.ticks.mean())
    return usual.returns, 0.0


def _after(turn: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool[B]: turn comes after other in order of tokens."""
    differs = turn != other
    place = np.argmax(differs, axis=1)[:, None]
    return np.take_along_axis(turn, place, 1)[:, 0] > np.take_along_axis(other, place, 1)[:, 0]


def _first_other(draws: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int32[B, 1+A], bool[B]): the first of draws int32[B, K, 1+A] that is not the turn, and whether there is one."""
    differs = np.any(draws != turn[:, None], axis=-1)
    return draws[np.arange(len(turn)), np.argmax(differs, axis=1)], differs.any(axis=1)


def _differ(one: np.ndarray, other: np.ndarray) -> float:
    """Share of the events of either log, uint32[T, N] of hashes, that the other does not have."""
    one, other = one[one > 0], other[other > 0]
    if len(one) + len(other) == 0:
        return 0.0
    return float((np.sum(~np.isin(one, other)) + np.sum(~np.isin(other, one))) / (len(one) + len(other)))
