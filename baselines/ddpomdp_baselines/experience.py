"""What learners learn from: episodes of groups, the decisions in them, and gradients summed over chunks of decisions.

Most slots of most ticks decide nothing: they are empty, idle or forced to wait. So decisions are picked out, and a
gradient is summed over chunks of them: time goes with the number of decisions, memory with the size of a chunk.

Axis letters: T tick, B episode (groups x members), N slot, A argument position, P parent place, E = T B N entry.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.coach import Coach, coached, read
from ddpomdp.enums import Decision
from ddpomdp.env import Env
from ddpomdp.harness import Legal
from ddpomdp.options import choose
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.pytree import pytree
from ddpomdp.rollouts import Fork, episodes, late_reward, left_early
from ddpomdp.timestep import Observation, TimeStep
from ddpomdp_baselines import prefix as prefix_
from ddpomdp_baselines.advantages import returns_to_go
from ddpomdp_baselines.network import View
from ddpomdp_baselines.prefix import Prefix

SIGNALS = ("life", "to_go", "call", "counterfactual", "gae")


@pytree
class Experience:
    """Episodes as a learner needs them. Rows of slots that did not decide hold what is to be ignored."""

    seen: Observation  # [T,B,...]
    legal: Legal  # [T,B,N,...]
    turns: jax.Array  # int32[T,B,N,1+A]
    logp: jax.Array  # f32[T,B,N,1+A]  under the behaviour policy
    tokens: jax.Array  # int32[T,B,N]     tokens of the turn with more than one legal value
    decides: jax.Array  # bool[T,B,N]
    role: jax.Array  # int32[T,B,N]
    returns: jax.Array  # f32[T,B,N]       what the decision is judged by, see `signal_of`
    group: jax.Array  # int32[B]
    facts: dict[str, jax.Array]  # f32[B] each      of the episode, see `facts`
    forked: jax.Array | None = None  # bool[T,B,N]  where members of a group part, if they are branches of one prefix
    last: jax.Array | None = None  # bool[T,B,N]    its life's last decision, if a critic is to judge steps
    prefix: Prefix | None = None  # the traces, if a critic reads them


def group_keys(key: jax.Array, groups: int, group_size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(task keys [B], luck keys [B], group int32[B]): members of a group share the task draw, not the luck."""
    tasks = jax.random.split(key, groups)
    member = jnp.arange(group_size, dtype=jnp.uint32)
    luck = jax.vmap(lambda task: jax.vmap(lambda m: jax.random.fold_in(jax.random.fold_in(task, 1), m))(member))(tasks)
    return (
        jnp.repeat(tasks, group_size, total_repeat_length=groups * group_size),
        luck.reshape(-1),
        jnp.repeat(jnp.arange(groups, dtype=jnp.int32), group_size),
    )


def collect(
    env: Env,
    policy: Policy,
    params: Any,
    keys: jax.Array,
    luck: jax.Array,
    group: jax.Array,
    num_ticks: int,
    env_params: Params,
    signal: str = "life",
    coach: Coach | None = None,
    fork: Fork | None = None,
    trace: tuple[bool, int] | None = None,
) -> Experience:
    """Play episodes and keep what a learner needs.

    Args:
      env: the environment.
      policy: gives `logp` and `choice` in its aux.
      params: its parameters.
      keys: task keys [B].
      luck: keys [B].
      group: int32[B].
      num_ticks: static T; an episode that has not ended by then is paid as far as it went.
      env_params: numbers of the environment, with the channel weights in force.
      signal: what a decision is judged by, one of `SIGNALS`.
      coach: scores the episodes when they are over; what it gives is paid with the weight of channel `process`.
      fork: where the episodes go ways of their own.
      trace: whether folded, and how many rows: what a critic reads of the traces; None: nothing.
    """

    def record(ts: TimeStep, turns: jax.Array, aux: Any, next_ts: TimeStep) -> dict[str, Any]:
        event = next_ts.events
        return {
            "seen": ts.observation,
            "legal": ts.legal,
            "turns": turns,
            "logp": aux["logp"],
            "tokens": jnp.sum(aux["choice"], axis=-1, dtype=jnp.int32),
            "decides": event.is_decision & event.valid,
            "role": event.role,
            "uid": event.uid,
            "reward": jnp.where(event.uid >= 0, next_ts.reward, 0.0),  # empty slots are paid nothing
            "decision": event.decision,
            "left": jax.vmap(left_early)(ts, next_ts),
            "team": jax.vmap(lambda step: step.team_return)(next_ts),
            "trace": None if trace is None else prefix_.logged(event),
        }

    note = partial(read, env) if coach else None
    batch = episodes(env, policy, params, keys, luck, num_ticks, env_params, record, note, fork)
    log = batch.recorded
    uid, paid, told = log["uid"], log["reward"], {}
    if coach:
        scored = coached(coach, batch, luck)
        paid = paid + env_params.weights["process"] * scored
        told = {"process": jnp.sum(scored, axis=(0, 2)) / jnp.maximum(jnp.sum(scored > 0, axis=(0, 2)), 1)}
    late = jax.vmap(late_reward, in_axes=(0, 1, 1, 0, None))(
        batch.state, uid, log["left"], jnp.sum(log["team"], axis=0), env_params.weights
    )
    num_uids = late.shape[1]
    life = jnp.arange(uid.shape[1], dtype=jnp.int32)[None, :, None] * num_uids + jnp.maximum(uid, 0)
    total = late.reshape(-1) + jax.ops.segment_sum(paid.reshape(-1), life.reshape(-1), late.size)
    returns, last = signal_of(signal, paid, uid, total[life], late.reshape(-1)[life]), None
    if signal == "gae":
        returns, last = settled(paid, uid, late.reshape(-1)[life], log["decides"])
    traces = None
    if trace is not None:
        traces = prefix_.prefix_of(env, log["trace"], num_uids, fold=trace[0], rows=trace[1])
    return Experience(
        seen=log["seen"],
        legal=log["legal"],
        turns=log["turns"],
        logp=log["logp"],
        tokens=jnp.where(log["decides"], log["tokens"], 0),
        decides=log["decides"],
        role=log["role"],
        returns=jnp.where(log["decides"], returns, 0.0),
        group=group,
        facts=facts(log, batch.ts.info, batch.ticks, total.reshape(late.shape)[:, 0]) | told,
        forked=None if fork is None else _forked(fork, log["decides"]),
        last=last,
        prefix=traces,
    )


def signal_of(signal: str, paid: jax.Array, uid: jax.Array, total: jax.Array, late: jax.Array) -> jax.Array:
    """f32[T,B,N]: what each decision is judged by.

    life    all that its life is paid, from birth to the episode's end, late reward included
    to_go   what its life is paid from this call on, late reward included
    call    what its life is paid in the tick of this call
    counterfactual  as life: it is where episodes part that differs, see `c3.forks`
    gae     as call; what is paid between decisions is `settled`, and a critic's advantage takes its place

    Args:
      signal: one of these.
      paid: f32[T,B,N], per tick.
      uid: int32[T,B,N], -1 nobody.
      total: f32[T,B,N], of the life in the slot.
      late: f32[T,B,N], likewise.
    """
    choose("signal", signal, SIGNALS)
    if signal in ("life", "counterfactual"):
        return total
    if signal in ("call", "gae"):
        return paid
    other = jnp.concatenate([uid[1:] != uid[:-1], jnp.ones_like(uid[:1], bool)])
    return late + returns_to_go(paid, other, mask=uid >= 0)


def settled(paid: jax.Array, uid: jax.Array, late: jax.Array, decides: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(what each life is paid from each of its decisions to before its next f32[T,B,N], its last decision bool[T,B,N]).

    What falls due after the life has ended is its last decision's; what it was paid before its first is nobody's.
    """

    def back(after: tuple[jax.Array, ...], now: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        owner, due, goes_on = after
        paid, uid, late, decides = now
        same = uid == owner
        due, goes_on = paid + jnp.where(same, due, late), goes_on & same
        gets = jnp.where(decides, due, 0.0), decides & ~goes_on
        return (uid, jnp.where(decides, 0.0, due), goes_on | decides), gets

    nobody = jnp.full(uid.shape[1:], -2, uid.dtype)
    start = nobody, jnp.zeros(uid.shape[1:], paid.dtype), nobody > 0
    return jax.lax.scan(back, start, (paid, uid, late, decides), reverse=True)[1]


def _forked(fork: Fork, decides: jax.Array) -> jax.Array:
    """bool[T,B,N]: the decisions at which episodes part."""
    tick = jnp.arange(decides.shape[0])[:, None, None] == fork.tick[:, None]
    return decides & tick & (jnp.arange(decides.shape[2]) == fork.slot[:, None])


def facts(log: dict[str, Any], info: dict[str, Any], ticks: jax.Array, reward: jax.Array) -> dict[str, jax.Array]:
    """f32[B] each, of an episode: what the root was paid, quality, births, simulated cost, decisions by kind."""
    made = lambda kind: jnp.sum(log["decides"] & (log["decision"] == kind), axis=(0, 2))  # noqa: E731
    values = {
        "reward": reward,
        "quality": info["quality"],
        "tokens": info["tokens"],
        "wall_s": info["wall_s"],
        "births": info["births"],
        "ticks": ticks,
        "decisions": jnp.sum(log["decides"], axis=(0, 2)),
        "spawns": made(Decision.SPAWN),
        "delegations": made(Decision.DELEGATE),
        "stops": made(Decision.STOP),
    }
    return {name: value.astype(jnp.float32) for name, value in values.items()}


def entries(x: jax.Array) -> jax.Array:
    """[T,B,N,...] as [E,...]."""
    return x.reshape(-1, *x.shape[3:])


# Gradients over chunks ---------------------------------------------------------------------------------------------

Chunk = tuple[View, jax.Array, jax.Array]  # view of E entries, which entries int32[E], and which of them are real


def sum_over_decisions(
    fn: Callable[[View, jax.Array, jax.Array], Any], data: Experience, learns: jax.Array, chunk: int
) -> Any:
    """Sum of fn(view, entry int32[C], real bool[C]) over all decisions, C at a time.

    Parents (whose rosters and boards are read) and others go in chunks of their own; `fn` sees `real` False where a
    chunk is not full, and must give such rows no weight.

    Args:
      fn: to a pytree of sums.
      data: where the decisions are.
      learns: bool[T,B,N], which of them count.
      chunk: static C.
    """
    steps, batch, slots = learns.shape
    places = data.seen.parent_slot.shape[2]
    wanted = data.decides & learns
    tick = jnp.arange(steps * batch, dtype=jnp.int32)[:, None]
    parent = data.seen.parent_slot.reshape(steps * batch, places)
    holder = jnp.where(parent >= 0, tick * slots + parent, learns.size)
    decides = wanted.reshape(-1).at[holder].get(mode="fill", fill_value=False)
    others = wanted.reshape(-1).at[holder.reshape(-1)].set(False, mode="drop")

    def alone(place: jax.Array, real: jax.Array) -> Any:
        return fn(_view(data, place, None), place, real)

    def leading(place: jax.Array, real: jax.Array) -> Any:
        entry = jnp.minimum(holder.reshape(-1)[place], learns.size - 1)
        return fn(_view(data, entry, place), entry, real)

    total = _sum_where(leading, decides.reshape(-1), max(chunk // 8, 1))
    return jax.tree.map(jnp.add, total, _sum_where(alone, others, chunk))


def _sum_where(fn: Callable[[jax.Array, jax.Array], Any], flags: jax.Array, chunk: int) -> Any:
    """Sum of fn(index int32[C], real bool[C]) over the set flags bool[.]."""
    padded = -(-flags.size // chunk) * chunk
    index = jnp.nonzero(flags, size=padded, fill_value=0)[0].astype(jnp.int32)
    count = jnp.sum(flags, dtype=jnp.int32)

    def part(i: jax.Array) -> Any:
        return fn(
            jax.lax.dynamic_slice_in_dim(index, i * chunk, chunk),
            i * chunk + jnp.arange(chunk, dtype=jnp.int32) < count,
        )

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, jnp.int32(0)))
    add = lambda i, total: jax.tree.map(jnp.add, total, part(i))  # noqa: E731
    return jax.lax.fori_loop(0, (count + chunk - 1) // chunk, add, zero)


def _view(data: Experience, entry: jax.Array, place: jax.Array | None) -> View:
    """What decisions int32[C] saw; `place` int32[C] are their parent places in [T,B,P], None: they hold none."""
    own = lambda x: entries(x)[entry]  # noqa: E731
    if place is None:
        at, held = jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32)
    else:
        at, held = jnp.arange(entry.shape[0], dtype=jnp.int32), place
    return View(
        self=own(data.seen.self),
        claims=own(data.seen.claims),
        last_result=own(data.seen.last_result),
        legal=jax.tree.map(own, data.legal),
        at=at,
        roster=entries(data.seen.roster)[held],
        roster_uid=entries(data.seen.roster_uid)[held],
        board=entries(data.seen.board)[held],
    )
