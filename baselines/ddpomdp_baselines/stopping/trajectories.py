"""Episodes of a lead that is not allowed to stop, and what stopping would have paid at each of its decisions.

A scripted lead goes through its work; before some of its lines it might have stopped. There the episode is branched:
the lead closes (reads, stops) on a copy of the state with the same luck, and what the environment then pays is kept. So
all stopping rules can be replayed on the same episodes, whatever the price. That is exact as long as stopping affects
nothing before it, and no feature speaks of the price. Axis letters: B episode, T decision, F feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import ResultCode, StopReason
from ddpomdp.env import Env
from ddpomdp.options import UsageError, whole
from ddpomdp.params import Params
from ddpomdp.policies import Script
from ddpomdp.rollouts import renewed
from ddpomdp.timestep import TimeStep
from ddpomdp_baselines.experience import group_keys
from ddpomdp_baselines.stopping import known as known_
from ddpomdp_baselines.stopping import lookup

BATCH = 256  # episodes at a time


@dataclass(frozen=True)
class Suppressed:
    """Episodes without a stop. Decision t of an episode exists where `here`; those that exist come first.

    Attributes:
      quality: f64[B, T], what stopping there pays before costs, as it turns out (realised).
      cost: f64[B, T], spent if one stops there, in tokens; seconds count as so many tokens as they cost in the
        environment.
      seen: f32[B, T, F], what the lead sees there.
      names: of the features.
      here: bool[B, T].
      confidence: f64[B, T], what the lead would call its confidence: the posterior where it is known, else a feature.
      known: f64[B, T], expected quality on the lead's information, where it is known; else None.
      cell: int[B, T], number of the lead's information state, where there are finitely many; else None.
      price: quality points per token in the environment.
      group: so many episodes in a row share a task draw, each with luck of its own.
    """

    quality: np.ndarray
    cost: np.ndarray
    seen: np.ndarray
    names: tuple[str, ...]
    here: np.ndarray
    confidence: np.ndarray
    known: np.ndarray | None
    cell: np.ndarray | None
    price: float
    group: int = 1

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.here)

    @property
    def last(self) -> np.ndarray:
        """int[B]: the last decision of each episode."""
        return self.here.sum(axis=1) - 1

    def payoff(self, kind: str = "realised") -> np.ndarray:
        """f64[B, T]: quality of stopping, "realised" or "known" (expected on the lead's information)."""
        if kind == "realised":
            return self.quality
        if kind == "known" and self.known is not None:
            return self.known
        allowed = ("realised",) if self.known is None else ("realised", "known")
        raise UsageError(f"payoff: got {kind!r}, allowed here: {', '.join(allowed)}")

    def net(self, price: float, kind: str = "realised") -> np.ndarray:
        """f64[B, T]: payoff less price x cost."""
        return self.payoff(kind) - price * self.cost

    def some(self, index: Any) -> "Suppressed":
        """Those episodes; groups are forgotten."""
        part = lambda x: None if x is None else x[index]  # noqa: E731
        names = ("quality", "cost", "seen", "here", "confidence", "known", "cell")
        return replace(self, **{name: part(getattr(self, name)) for name in names}, group=1)

    def until(self, decisions: int) -> "Suppressed":
        """The same with a shorter horizon: the first `decisions` decisions."""
        whole("decisions", decisions, 1, self.here.shape[1])
        part = lambda x: None if x is None else x[:, :decisions]  # noqa: E731
        names = ("quality", "cost", "seen", "here", "confidence", "known", "cell")
        return replace(self, **{name: part(getattr(self, name)) for name in names})


def of_process(process: known_.Process, paths: int, seed: int, price: float) -> Suppressed:
    """Paths of a finite problem; a realised payoff is 1 with the expected one as probability, else 0, with one draw of
    luck per path.
    """
    states = process.sample(paths, seed)
    luck = np.random.default_rng((seed, 1)).random((paths, 1))
    steps = np.stack([*(cost[states[:, t]] for t, cost in enumerate(process.cost)), np.zeros(paths)], axis=1)
    cost = np.concatenate([np.zeros((paths, 1)), np.cumsum(steps[:, :-1], axis=1)], axis=1)
    payoff = np.stack([payoff[states[:, t]] for t, payoff in enumerate(process.payoff)], axis=1)
    time = np.broadcast_to(np.arange(process.horizon + 1.0), payoff.shape)
    return Suppressed(
        quality=(luck < payoff).astype(np.float64),
        cost=cost,
        seen=np.stack([payoff, time], axis=-1).astype(np.float32),
        names=("payoff", "time"),
        here=np.ones(payoff.shape, bool),
        confidence=payoff,
        known=payoff,
        cell=states + process.offsets,
        price=price,
    )


def collect(
    env: Env,
    script: Script,
    asked: Sequence[int],
    closing: Sequence[Any],
    *,
    seed: int,
    episodes: int,
    confidence: str = "mean_top_confidence",
    num_ticks: int | None = None,
    group: int = 1,
    params: Params | None = None,
) -> Suppressed:
    """Play a script whose lead never stops, and see at each decision what stopping would have paid.

    Args:
      env: the environment.
      script: its lines hold no `stop`; a policy whose memory is the next line, like `Script`.
      asked: lines before which the lead might stop, in order.
      closing: turns int32[1+A] with which it would, the last of them `stop`.
      seed: episodes are named by it: the same seed, the same tasks and luck.
      episodes: how many.
      confidence: name of the feature that stands for confidence where the posterior is not known.
      num_ticks: most ticks; default the horizon.
      group: episodes per task draw.
      params: of the environment; default its own.
    """
    params = env.params if params is None else params
    names = feature_names(env)
    if confidence not in names:
        raise UsageError(f"confidence: got {confidence!r}, allowed: {', '.join(names)}")
    whole("episodes", episodes, 1, 10**7)
    whole("group", group, 1, episodes)
    if episodes % group:
        raise UsageError(f"group: got {group}, which does not divide {episodes} episodes")
    keys, luck, _ = group_keys(jax.random.key(seed), episodes // group, group)
    if group == 1:
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)  # the same episodes as `rollout` with these keys
    num_ticks = env.spec.max_ticks if num_ticks is None else num_ticks
    lines = jax.tree.leaves(script.init(env))[0].shape[0]
    flags = np.zeros(lines, bool)
    flags[list(asked)] = True
    turns = jnp.asarray(np.stack([np.asarray(turn) for turn in closing]), jnp.int32)
    parts = []
    for first in range(0, episodes, BATCH):
        index = np.arange(first, first + min(BATCH, episodes)) % episodes  # one shape: the last batch wraps round
        part = _play(
            env, script, script.init(env), keys[index], luck[index], jnp.asarray(flags), turns, params, num_ticks
        )
        parts.append(jax.tree.map(lambda x: np.moveaxis(np.asarray(x), 0, 1), part))
    log = jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)
    return replace(_decisions(env, params, log, len(asked), names, confidence), group=group)


@partial(jax.jit, static_argnames=("env", "script", "num_ticks"))
def _play(
    env: Env,
    script: Script,
    params: Any,
    keys: jax.Array,
    luck: jax.Array,
    asked: jax.Array,
    closing: jax.Array,
    env_params: Params,
    num_ticks: int,
) -> dict[str, jax.Array]:
    """What is seen and paid, [T, B] per tick."""
    state, ts = jax.vmap(lambda key, luck: env.reset(key, luck, env_params))(keys, luck)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (keys.shape[0], *x.shape)), script.carry(env))

    last = closing.shape[0]

    def one(luck: jax.Array, state: Any, ts: TimeStep, memory: Any) -> tuple[Any, ...]:
        root = (ts.uid == 0) & ts.alive
        line = jnp.sum(jnp.where(root, memory, 0), dtype=jnp.int32)
        asks = jnp.any(root & ~ts.blocked) & asked[line] & ~ts.last
        script_turns, after, _ = script.act(params, jax.random.fold_in(luck, 2), memory, ts)
        turns = jnp.concatenate([jnp.where(root[:, None], closing[:, None, :], 0), script_turns[None]])

        # The closing turns on a copy, then the script's turn from where the episode stands: one program for both.
        def go(at: Any, j: jax.Array) -> tuple[Any, TimeStep]:
            at = jax.tree.map(lambda now, copy: jnp.where(j == last, now, copy), state, at)
            return env.step(luck, at, turns[j], env_params)

        moved, steps = jax.lax.scan(go, state, jnp.arange(last + 1))
        end, next_ts = (jax.tree.map(lambda x, j=j: x[j], steps) for j in (last - 1, last))
        kept = {
            "asks": asks & (end.stop_reason == StopReason.STOPPED),
            "quality": end.info["quality"],
            "tokens": end.info["tokens"],
            "wall_s": end.info["wall_s"],
            "result": jnp.sum(jnp.where(root[:, None], ts.observation.last_result, 0), axis=0).astype(jnp.int32),
            "seen": features(ts, root),
        }
        return moved, next_ts, renewed(env, script, after, ts, next_ts), kept

    def tick(carry: tuple, _: None) -> tuple[tuple, Any]:
        state, ts, memory, kept = jax.vmap(one)(luck, *carry)
        return (state, ts, memory), kept

    return jax.lax.scan(tick, (state, ts, memory), None, length=num_ticks)[1]


def feature_names(env: Env) -> tuple[str, ...]:
    """Names of what `features` gives."""
    board = tuple(f"mean_{name.removesuffix('_id')}" for name in env.spec.board_features)
    return (*env.spec.self_features, *board, "rows_known", "rows_disputed", "lead_of_top", "last_found")


def features(ts: TimeStep, root: jax.Array) -> jax.Array:
    """f32[F]: the lead's own features, its board as means over rows, and whether its last call found something."""
    own = jnp.sum(jnp.where(root[:, None], ts.observation.self, 0.0), axis=0)
    board = ts.observation.board[0]
    values, top, second = board[:, 1], board[:, 3], board[:, 4]  # BOARD_FEATURES begin alike everywhere
    said = jnp.sum(jnp.where(root, ts.observation.last_result[:, 2], 0.0))
    more = [values > 0, values > 1, (top - second) / (1.0 + top + second)]
    means = [jnp.mean(x.astype(jnp.float32)) for x in more]
    return jnp.concatenate([own, jnp.mean(board, axis=0), jnp.stack([*means, (said >= 0).astype(jnp.float32)])])


def _decisions(
    env: Env, params: Params, log: dict[str, np.ndarray], most: int, names: tuple[str, ...], confidence: str
) -> Suppressed:
    """Ticks [B, T] of all episodes as their decisions."""
    asks = log["asks"] & (np.cumsum(log["asks"], axis=1) <= most)
    count = asks.sum(axis=1)
    if np.any(count == 0):
        raise UsageError(f"{int(np.sum(count == 0))} episodes have no decision: the lead may never stop where asked")
    order = np.argsort(~asks, axis=1, kind="stable")[:, : count.max()]
    here = np.take_along_axis(asks, order, axis=1)
    pick = lambda x: np.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)  # noqa: E731
    cell, known, here = _information(env, params, pick(log["result"]), here)
    seen = np.where(here[..., None], pick(log["seen"]), 0.0)
    price, second = float(params.price_token), float(params.price_second)
    per_second = second / price if price else 0.0
    cost = np.where(here, pick(log["tokens"]).astype(np.float64) + per_second * pick(log["wall_s"]), 0.0)
    quality = np.where(here, pick(log["quality"]).astype(np.float64), 0.0)
    sure = seen[..., names.index(confidence)].astype(np.float64) if known is None else known
    return Suppressed(quality, cost, seen.astype(np.float32), names, here, sure, known, cell, price)


Information = tuple[np.ndarray | None, np.ndarray | None, np.ndarray]


def _information(env: Env, params: Params, result: np.ndarray, here: np.ndarray) -> Information:
    """(state int[B, T], posterior payoff f64[B, T], here) where the problem is known, from the lead's last results
    int[B, T, 3]; a decision after which nothing can change is an episode's last.
    """
    if env.id == "Math-v0" and env.options["oracle_form"] == "vote":
        return _votes(env, result[..., 2], here)
    if env.id == "Search-v0" and env.options["topology"] == "single" and lookup.is_plain(params):
        return _lookups(env, params, result[..., 1], here)
    return None, None, here


def _votes(env: Env, value: np.ndarray, here: np.ndarray) -> Information:
    problem = known_.process(env)
    if not here.all():
        raise UsageError("vote: an episode ended before its last decision")
    labels = np.stack([np.cumsum(value[:, 1:] == v, axis=1) for v in range(4)], axis=-1)
    counts = np.concatenate([np.zeros((len(value), 1, 4), int), labels], axis=1)
    counts = -np.sort(-counts, axis=-1)
    cell, known = np.zeros(here.shape, int), np.zeros(here.shape)
    for t in range(here.shape[1]):
        index = {state: i for i, state in enumerate(known_.vote_states(t))}
        places = np.asarray([index[(*c, t - sum(c))] for c in counts[:, t].tolist()])
        cell[:, t], known[:, t] = places + problem.offsets[t], problem.payoff[t][places]
    return cell, known, here


def _lookups(env: Env, params: Params, code: np.ndarray, here: np.ndarray) -> Information:
    """Rows done, turns on the next one, values found: counted from what came of each turn."""
    horizon = here.shape[1] - 1
    laws = lookup.laws(env, horizon, params)
    problem = lookup.seen(laws)[0]
    state = np.zeros((len(here), 3), int)  # d, n, f
    cell, known, open_ = np.zeros(here.shape, int), np.zeros(here.shape), np.ones(here.shape, bool)
    for t in range(horizon + 1):
        if t:
            done, going = state[:, 0] == laws.rows, code[:, t] == ResultCode.IN_PROGRESS
            found, ends = code[:, t] == ResultCode.FOUND, np.isin(code[:, t], (ResultCode.FOUND, ResultCode.EMPTY))
            moved = np.stack([state[:, 0] + ends, np.where(ends, 0, state[:, 1] + going), state[:, 2] + found], axis=1)
            open_[:, t] = ~done
            state = np.where(done[:, None], state, moved)
        index = lookup.places(laws, t)
        places = np.asarray([index[(d, n, f)] for d, n, f in state.tolist()])
        cell[:, t], known[:, t] = places + problem.offsets[t], problem.payoff[t][places]
    if np.any(open_ & ~here):
        raise UsageError("lookup: an episode ended before its last decision")
    return cell, np.where(open_, known, 0.0), open_
