"""`assign`: the credit of every decision of an episode, by unit and estimator.

Axis letters: T tick, N slot, A argument position, U unit or life, K alternative.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from ddpomdp.credit import table, units
from ddpomdp.credit.plays import Moment, Player, player
from ddpomdp.credit.units import Told
from ddpomdp.enums import CreditUnit, EventKind
from ddpomdp.env import Env
from ddpomdp.options import UsageError, choose, whole
from ddpomdp.params import Params
from ddpomdp.rollouts import Rollout

SAMPLES = 8  # other episodes, or alternatives of a decision
EXACT = 8  # lives whose Shapley values are exact where samples is None
ALTERNATIVES = ("policy", "uniform")


@dataclass(frozen=True)
class Credit:
    """What `assign` gives. Numpy."""

    value: np.ndarray  # f32[T,N,1+A] a unit's credit at every used position of its decisions, else 0
    stderr: np.ndarray  # f32[T,N,1+A] of `value`, 0 where nothing was sampled
    residual: float  # `total` less the sum (estimator shared: the mean) of the units' credits
    total: float  # what there is to share out: the team's return; of process what was paid, of shapley R - v(nobody)
    ids: np.ndarray  # int[T,N]    the unit of each decision, -1 none
    units: np.ndarray  # f64[U]      the credit of each unit
    ticks: int  # simulated beyond the episode itself


class _Worth(NamedTuple):
    """Credits of units and what they cost."""

    value: np.ndarray  # f64[U]
    stderr: np.ndarray  # f64[U]
    total: float
    ticks: int = 0


@dataclass(frozen=True)
class _Case:
    """One call of `assign`."""

    rollout: Rollout
    told: Told
    ids: np.ndarray
    count: int  # U
    unit: CreditUnit
    returned: float  # R
    player: Player | None
    key: jax.Array | None
    luck: jax.Array | None
    samples: int | None
    uniform: bool
    values: np.ndarray | None
    weights: dict[str, float]


def assign(
    env: Env,
    rollout: Rollout,
    *,
    unit: CreditUnit | int,
    estimator: str,
    policy: Any = None,
    params: Any = None,
    key: jax.Array | None = None,
    samples: int | None = None,
    luck: jax.Array | None = None,
    alternatives: str = "policy",
    value_fn: Callable[[Any], jax.Array] | None = None,
    env_params: Params | None = None,
) -> Credit:
    """The credit of every decision of an episode. What each estimator is, and where it exists: docs/credit.md.

    shared          A_u = R
    leave_one_out   A_u = R - mean_i R_i, i = 1 .. samples further episodes of the same task draw
    counterfactual  A_u = mean_k (R - R_k), R_k: the same prefix and luck with the k-th alternative of that turn
    removal         A_u = R - R_{-u}, R_{-u}: the same luck without the unit: a turn becomes wait; lives are absent,
                    they hand back their work untouched (the root, which cannot, only waits)
    shapley         A_u = mean over orders of the lives of v(those before u and u) - v(those before u), where v(S) is
                    the return when all others are absent; orders are sampled, or all (`samples` None)
    process         A_u = sum of what u's turns were paid in channels beside `team`; pay that falls due between two
                    decisions of a life, or after its end, belongs to the one before
    return_to_go    A_u = sum of what u's life was paid from that turn on, what falls due after its end included
    critic          return_to_go - value_fn(what was seen before the turn)

    A decision that changes nothing gets exactly 0 from counterfactual, removal and shapley.

    Args:
      env: the environment.
      rollout: one episode, played to its end.
      unit: what gets a credit; a message is a turn `message` or `return`.
      estimator: one of the above.
      policy: what played the rollout, for estimators that play further episodes.
      params: its parameters.
      key: the key the rollout was made with.
      samples: further episodes, alternatives per decision (default 8), or orders of lives.
      luck: the rollout's luck if it was given one.
      alternatives: whether the policy draws them, or all legal tokens are equally likely.
      value_fn: (TimeStep before the turn) to f32[N], of estimator `critic`.
      env_params: numbers the rollout was made with.

    Raises:
      ValueError: an estimator without that unit, missing arguments, an unfinished or batched rollout, or a rollout
        that policy and key do not repeat.
    """
    row, unit = table.find(estimator, unit)
    choose("alternatives", alternatives, ALTERNATIVES)
    whole("samples", samples, 1, 1_000_000, none=True)
    if row.branches and (policy is None or params is None or key is None):
        raise UsageError(f"estimator {estimator!r} plays further episodes: it needs policy, params and key")
    if (estimator == "critic") != (value_fn is not None):
        raise UsageError("value_fn: estimator 'critic' needs one, the others take none")
    told = units.told(env, rollout)
    if not bool(np.asarray(rollout.next_ts.last)[-1]):
        raise UsageError(f"rollout: the episode has not ended after {len(told.uid)} ticks; play more")
    numbers = env.params if env_params is None else env_params
    if key is not None and luck is None:
        luck = jax.random.fold_in(key, 1)
    ids = units.groups(told, unit)
    case = _Case(
        rollout=rollout,
        told=told,
        ids=ids,
        count=int(ids.max(initial=-1)) + 1,
        unit=unit,
        returned=float(np.asarray(jax.vmap(lambda ts: ts.team_return)(rollout.next_ts)).sum(dtype=np.float32)),
        player=player(env, policy, params, env_params) if row.branches else None,
        key=key,
        luck=luck,
        samples=samples,
        uniform=alternatives == "uniform",
        values=None if value_fn is None else np.asarray(jax.vmap(value_fn)(rollout.ts), np.float64),
        weights={name: float(weight) for name, weight in numbers.weights.items()},
    )
    worth = _ESTIMATORS[estimator](case)
    whole_credit = np.mean(worth.value) if row.conserves == "mean" and case.count else np.sum(worth.value)
    spread = lambda x: np.where(  # noqa: E731
        (ids >= 0)[..., None] & told.used, np.append(x, 0.0)[ids][..., None], 0.0
    ).astype(np.float32)
    return Credit(
        value=spread(worth.value),
        stderr=spread(worth.stderr),
        residual=float(worth.total - whole_credit),
        total=float(worth.total),
        ids=ids,
        units=worth.value,
        ticks=worth.ticks,
    )


# Estimators --------------------------------------------------------------------------------------------------------


def _shared(case: _Case) -> _Worth:
    same = np.full(case.count, case.returned)
    return _Worth(same, np.zeros(case.count), case.returned)


def _leave_one_out(case: _Case) -> _Worth:
    player, key, luck, _ = _playing(case)
    count = case.samples or SAMPLES
    lucks = jax.random.split(jax.random.fold_in(luck, 3), count)
    others = player.ordinary(jax.numpy.broadcast_to(key, (count, *key.shape)), lucks)
    less = case.returned - others.returns.astype(np.float64)
    same = np.ones(case.count)
    return _Worth(same * less.mean(), same * _stderr(less), case.returned, int(others.ticks.sum()))


def _counterfactual(case: _Case) -> _Worth:
    player, _, luck, returned = _playing(case)
    if case.count == 0:
        return _Worth(np.zeros(0), np.zeros(0), returned)
    tick, slot = np.nonzero(case.ids >= 0)
    worth = counterfactual(
        player,
        _before(case, tick),
        jax.numpy.broadcast_to(luck, (len(tick), *luck.shape)),
        slot,
        case.told.turns[tick, slot],
        np.full(len(tick), returned),
        case.samples or SAMPLES,
        case.uniform,
    )
    return _Worth(worth.value, worth.stderr, returned, worth.ticks)


def counterfactual(
    player: Player,
    moment: Moment,
    luck: jax.Array,
    slot: np.ndarray,
    turn: np.ndarray,
    returned: np.ndarray,
    samples: int,
    uniform: bool,
) -> _Worth:
    """Estimator `counterfactual` of one decision per lane: turn int32[B, 1+A] of slot int[B], return f32[B]."""
    keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 4), samples))(luck)
    others = player.alternatives(keys, moment, slot, uniform)  # [B, K, 1+A]
    differs = np.any(others != turn[:, None], axis=-1)
    effect = np.zeros(differs.shape)
    lane, place = np.nonzero(differs)
    ticks = 0
    if len(lane):
        played = player.play_on(moment.at(lane), luck[lane], slot[lane], others[lane, place])
        effect[lane, place] = returned[lane] - played.returns.astype(np.float64)
        ticks = int(played.ticks.sum())
    return _Worth(effect.mean(axis=1), _stderr(effect), 0.0, ticks)


def _removal(case: _Case) -> _Worth:
    player, _, luck, returned = _playing(case)
    if case.count == 0:
        return _Worth(np.zeros(0), np.zeros(0), returned)
    if case.unit in (CreditUnit.TURN, CreditUnit.MESSAGE, CreditUnit.TOOL_CALL):
        tick, slot = np.nonzero((case.ids >= 0) & (case.told.kind != EventKind.WAIT))  # a wait is its own removal
        effect = np.zeros(case.count)
        if len(tick) == 0:
            return _Worth(effect, effect, returned)
        lucks = jax.numpy.broadcast_to(luck, (len(tick), *luck.shape))
        played = player.play_on(_before(case, tick), lucks, slot)
        effect[case.ids[tick, slot]] = returned - played.returns.astype(np.float64)
        return _Worth(effect, np.zeros(case.count), returned, int(played.ticks.sum()))
    lives, names = _lives(case)
    members = np.zeros((case.count, len(lives)), bool)  # whose turns a unit has
    for unit in range(case.count):
        members[unit] = np.isin(lives, case.told.uid[case.ids == unit])
    returns, ticks = _coalitions(case, names, ~members)
    return _Worth(returned - returns, np.zeros(case.count), returned, ticks)


def _shapley(case: _Case) -> _Worth:
    _, _, luck, returned = _playing(case)
    lives, names = _lives(case)
    count = len(lives)
    if case.samples is None and count > EXACT:
        raise UsageError(
            f"samples: got None for {count} lives, allowed: a number of orders (exact up to {EXACT} lives)"
        )
    if case.samples is None:
        orders = list(itertools.permutations(range(count)))
    else:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(luck, 5))).tolist())
        orders = [rng.permutation(count) for _ in range(case.samples)]
    seen: dict[bytes, int] = {}
    coalitions, index = [], np.zeros((len(orders), count + 1), int)
    for o, order in enumerate(orders):
        inside = np.zeros(count, bool)
        for step in range(count + 1):
            if step:
                inside[order[step - 1]] = True
            name = inside.tobytes()
            if name not in seen:
                seen[name] = len(coalitions)
                coalitions.append(inside.copy())
            index[o, step] = seen[name]
    worths, ticks = _coalitions(case, names, np.stack(coalitions))
    marginal = np.zeros((len(orders), count))
    for o, order in enumerate(orders):
        marginal[o, np.asarray(order)] = np.diff(worths[index[o]])
    nobody = worths[seen[np.zeros(count, bool).tobytes()]]
    # A unit's value is the sum of those of the lives whose decisions it holds; each life has one role.
    value, stderr = np.zeros(case.count), np.zeros(case.count)
    for unit in range(case.count):
        mine = marginal[:, np.isin(lives, case.told.uid[case.ids == unit])].sum(axis=1)
        value[unit], stderr[unit] = mine.mean(), 0.0 if case.samples is None else _stderr(mine)
    return _Worth(value, stderr, returned - nobody, ticks)


def _process(case: _Case) -> _Worth:
    beside = {name: weight for name, weight in case.weights.items() if name != "team" and weight}
    if not beside:
        raise UsageError("estimator 'process' needs a reward with channels beside team, such as reward='hybrid'")
    paid, total = _pay(case, team=False)
    value = np.zeros(case.count)
    for unit in range(case.count):
        value[unit] = paid[case.ids == unit].sum()
    return _Worth(value, np.zeros(case.count), total)


def _return_to_go(case: _Case) -> _Worth:
    paid, _ = _pay(case, team=True)
    value = np.zeros(case.count)
    for life in np.unique(case.told.uid[case.told.decides]):
        mine = np.where(case.told.decides & (case.told.uid == life), paid, 0.0).sum(axis=1)  # [T]
        to_go = np.cumsum(mine[::-1])[::-1]
        tick, slot = np.nonzero((case.ids >= 0) & (case.told.uid == life))
        value[case.ids[tick, slot]] = to_go[tick]
    return _Worth(value, np.zeros(case.count), case.returned)


def _critic(case: _Case) -> _Worth:
    assert case.values is not None
    if case.values.shape != case.ids.shape:
        raise UsageError(f"value_fn: gave shape {case.values.shape[1:]}, must be {case.ids.shape[1:]} (slots)")
    base = np.zeros(case.count)
    base[case.ids[case.ids >= 0]] = case.values[case.ids >= 0]
    to_go = _return_to_go(case)
    return to_go._replace(value=to_go.value - base)


_ESTIMATORS: dict[str, Callable[[_Case], _Worth]] = {
    "shared": _shared,
    "leave_one_out": _leave_one_out,
    "counterfactual": _counterfactual,
    "removal": _removal,
    "shapley": _shapley,
    "process": _process,
    "return_to_go": _return_to_go,
    "critic": _critic,
}


# Parts -------------------------------------------------------------------------------------------------------------


def _playing(case: _Case) -> tuple[Player, jax.Array, jax.Array, float]:
    assert case.player is not None and case.key is not None and case.luck is not None
    again = case.player.ordinary(case.key[None], case.luck[None])
    ticks = min(len(case.told.uid), again.tokens.shape[1])
    if not (again.tokens[0, :ticks] == case.told.turns[:ticks]).all() or again.returns[0] != np.float32(case.returned):
        raise UsageError("rollout: policy, params, key and luck do not repeat it; pass what it was made with")
    return case.player, case.key, case.luck, case.returned


def _before(case: _Case, tick: np.ndarray) -> Moment:
    """Moments before ticks int[B] of the episode."""
    assert case.player is not None and case.key is not None and case.luck is not None
    many = lambda key: jax.numpy.broadcast_to(key, (len(tick), *key.shape))  # noqa: E731
    return case.player.advance(many(case.key), many(case.luck), tick)


def _lives(case: _Case) -> tuple[np.ndarray, np.ndarray]:
    """(uids int[U], lineages uint32[U, 2]) of everyone who made a decision, by uid."""
    lineage = np.asarray(case.rollout.ts.lineage)[case.told.decides]
    uids, first = np.unique(case.told.uid[case.told.decides], return_index=True)
    return uids, lineage[first]


def _coalitions(case: _Case, names: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, int]:
    """(returns f64[B], ticks) of the episode in which only the lives bool[B, U] are present."""
    assert case.player is not None and case.key is not None and case.luck is not None
    count = len(inside)
    many = lambda key: jax.numpy.broadcast_to(key, (count, *key.shape))  # noqa: E731
    start = case.player.advance(many(case.key), many(case.luck), np.zeros(count))
    played = case.player.play_on(start, many(case.luck), names=names, muted=~inside)
    return played.returns.astype(np.float64), int(played.ticks.sum())


def _pay(case: _Case, *, team: bool) -> tuple[np.ndarray, float]:
    """(f64[T, N], f64): pay by the decision it belongs to, and all of it."""
    after, told = case.rollout.next_ts, case.told
    paid = np.asarray(after.reward, np.float64)
    late = np.asarray(case.rollout.late_reward, np.float64)
    if not team:
        paid = paid - case.weights["team"] * np.asarray(after.channels["team"], np.float64)
        late = case.weights["individual"] * np.asarray(case.rollout.state.late, np.float64)
    paid = np.where(told.uid >= 0, paid, 0.0)
    placed = np.zeros_like(paid)
    for life in np.unique(told.uid[told.uid >= 0]):
        mine = told.uid == life
        tick, slot = np.nonzero(mine & told.decides)  # in order of ticks
        if len(tick) == 0:
            continue
        when, where = np.nonzero(mine)
        last = np.clip(np.searchsorted(tick, when, side="right") - 1, 0, None)
        np.add.at(placed, (tick[last], slot[last]), paid[when, where])
        placed[tick[-1], slot[-1]] += late[life]
    return placed, float(paid.sum() + late.sum())


def _stderr(samples: np.ndarray) -> np.ndarray:
    """Standard error of the mean along the last axis; 0 of a single sample."""
    count = samples.shape[-1]
    if count < 2:
        return np.zeros(samples.shape[:-1])
    return np.std(samples, axis=-1, ddof=1) / np.sqrt(count)
