"""Training: a run in a folder, from its options to weights, curves and checkpoints. The update itself is in `learner`.

    <out>/config.json          what the run is
    <out>/seed-<s>/curves.*    one row per update; timing.jsonl beside it
    <out>/checkpoints/         to go on from, after a break, byte for byte as without it
    <out>/seed-<s>.npz         the weights it ended with
    <out>/evaluation.json      start and end on common evaluation episodes

Deviations from the usual trainer: seeds are parts of one program and take turns on a CPU; an update that is not finite
changes nothing, and ten of them in a row end the run.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ddpomdp
from ddpomdp.bench import strictjson
from ddpomdp.coach import Coach, coach_of
from ddpomdp.env import Env
from ddpomdp.options import UsageError, bad_input, choose, number, refusal, whole
from ddpomdp.params import Params, reward_spec
from ddpomdp.progress import progress
from ddpomdp_baselines import algorithms, checkpoints, weights
from ddpomdp_baselines.algorithms import Algorithm
from ddpomdp_baselines.curves import Curves
from ddpomdp_baselines.evaluate import evaluate, means
from ddpomdp_baselines.learner import Learner, Sizes, Update, critic_of, start
from ddpomdp_baselines.network import STOP_HEADS, Network
from ddpomdp_baselines.schedules import scheduled
from ddpomdp_baselines.shipped import base

SKIPS = 10  # updates in a row that are not finite before the run ends
COUNTED = ("simulated_tokens", "simulated_s", "episodes", "decisions")  # summed up over a run


@dataclass(frozen=True)
class Options:
    """Options of a run beside the columns of the algorithm table.

    Attributes:
      groups: task draws per update.
      group_size: episodes of each, with luck of their own.
      num_ticks: most ticks of an episode; None: the environment's horizon.
      chunk: decisions per piece of a gradient: memory against speed.
      learning_rate: of Adam.
      max_norm: gradients are cut to this norm.
      width: of a fresh network; a network from a file keeps its own.
      stop_head: "hazard": the root stops by a head of its own, learned with the rest; "none": by the tool's logit. A
        network from a file without one gets a fresh one.
      learns: roles to learn from; None: those of the algorithm.
      coach: options of the task's coach, which is asked where channel `process` has a weight.
      episodes: budget instead of `updates`: so many episodes, rounded down to whole updates; None: `updates` counts.
      save_every: updates between checkpoints.
      eval_episodes: evaluation episodes at start and end; 0: none.
      devices: devices the groups are spread over.
      tensorboard: write TensorBoard files too, where a writer is installed.
    """

    groups: int = 8
    group_size: int = 8
    num_ticks: int | None = None
    chunk: int = 2048
    learning_rate: float = 1e-3
    max_norm: float = 1.0
    width: int = 32
    stop_head: str = "none"
    learns: tuple[str, ...] | None = None
    coach: Mapping[str, Any] = field(default_factory=dict)
    episodes: int | None = None
    save_every: int = 50
    eval_episodes: int = 256
    devices: int = 1
    tensorboard: bool = False


@dataclass(frozen=True)
class Result:
    """What a run ended with.

    Attributes:
      params: weights, leading axis seed.
      curves: rows of `curves.jsonl`, by seed.
      eval: by seed, means over the evaluation episodes: {"start": {...}, "end": {...}}.
      config: what the run is.
      path: its folder.
    """

    params: Any
    curves: dict[int, list[dict[str, Any]]]
    eval: dict[int, dict[str, dict[str, float]]]
    config: dict[str, Any]
    path: Path

    def of_seed(self, seed: int) -> Any:
        """The weights of one seed."""
        index = list(self.curves).index(seed)
        return jax.tree.map(lambda x: x[index], self.params)


@dataclass(frozen=True)
class Plan:
    """A run that can begin: everything checked."""

    options: Options
    update: Update
    learners: Learner  # leading axis seed
    seeds: tuple[int, ...]
    updates: int
    config: dict[str, Any]


def train(
    env_id: str,
    algorithm: str,
    *,
    env_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    num_seeds: int = 1,
    updates: int = 200,
    lag: int = 0,
    init: str = "base",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Result:
    """Train a policy.

    Args:
      env_id: environment.
      algorithm: a row of the table, `algorithms.names()`.
      env_options: of `ddpomdp.make`.
      options: fields of `Options`, and columns of the algorithm table to change.
      seed: of the first run; they count up from it.
      num_seeds: runs in one program.
      updates: gradient steps on fresh episodes (times the algorithm's epochs).
      lag: the behaviour policy is so many updates old.
      init: "base", "random", or a file of weights.
      out: folder of the run; default the first free of runs/train-<algorithm>, runs/train-<algorithm>-2, ...
      resume: go on from the newest checkpoint in `out`.

    Raises:
      UsageError: options that cannot be used, or a folder that holds another run.
      FloatingPointError: ten updates in a row were not finite.
    """
    plan = planned(env_id, algorithm, env_options or {}, options or {}, seed, num_seeds, updates, lag, init)
    folder = _folder(out, algorithm, resume)
    state = {"learners": plan.learners, "totals": {name: np.zeros(num_seeds) for name in COUNTED}}
    steady = not reward_spec(plan.update.env.options["reward"]).schedule  # else the schedule's end depends on `updates`
    check_memory(plan)
    with checkpoints.hold(folder, plan.config, state, resume=resume, may_differ=("updates",) if steady else ()) as run:
        strictjson.write_atomic(folder / "config.json", strictjson.dumps(plan.config, indent=1) + "\n")
        done, state = run.start.update, run.start.state
        logs = [Curves(_seed_folder(folder, each), done, tensorboard=plan.options.tensorboard) for each in plan.seeds]
        with progress(f"train {algorithm}", max(plan.updates - done, 0), "updates") as advance:
            try:
                while done < plan.updates:
                    state, words = _one(plan, state, done + 1, logs)
                    done += 1
                    if done % plan.options.save_every == 0 or done == plan.updates:
                        _save(run, logs, done, state)
                    advance(words)
            except KeyboardInterrupt:
                if done not in run.standing:
                    _save(run, logs, done, state)
                raise
        return _finish(plan, folder, state)


def planned(
    env_id: str,
    algorithm: str,
    env_options: Mapping[str, Any],
    given: Mapping[str, Any],
    seed: int,
    num_seeds: int,
    updates: int,
    lag: int,
    init: str,
) -> Plan:
    """Check everything a run depends on. Raises `UsageError`."""
    names = [each.name for each in fields(Options)]
    columns = [each.name for each in fields(Algorithm)]
    for name in given:
        if name not in names and name not in columns:
            raise UsageError(refusal("option of train", name, [*names, *columns]))
    options = Options(**{k: v for k, v in given.items() if k in names})
    row = algorithms.find(algorithm, {k: v for k, v in given.items() if k in columns})
    env = made(env_id, {"reward": row.reward, **env_options} if row.reward else env_options)
    whole("seed", seed, 0, 2**32 - 1)
    whole("num_seeds", num_seeds, 1, 1_000)
    whole("updates", updates, 1, 10**9)
    whole("lag", lag, 0, 1_000)
    _check(options, row, env)
    size = options.groups * options.group_size
    if options.episodes is not None:
        updates = options.episodes // size
        if updates < 1:
            raise UsageError(
                f"episodes: got {options.episodes}, one update takes {size} (groups {options.groups} x group_size "
                f"{options.group_size})"
            )
    sizes = Sizes(
        groups=options.groups,
        group_size=options.group_size,
        num_ticks=options.num_ticks or env.spec.max_ticks,
        chunk=options.chunk,
        lag=lag,
        devices=options.devices,
        learning_rate=options.learning_rate,
        max_norm=options.max_norm,
    )
    seeds = tuple(range(seed, seed + num_seeds))
    network, params = _init(env, init, options, row.per_role, seeds)
    coach = _coach(env, options)
    everyone = row.lead or env.rules.topology.name == "single"
    learns = options.learns or (env.spec.roles if everyone else env.spec.roles[1:])
    config = checkpoints.describe(
        env,
        algorithm=algorithm,
        seed=seed,
        num_seeds=num_seeds,
        updates=updates,
        lag=lag,
        init=init,
        env_options=_plain(env.options),
        options=_plain(vars(options) | {"learns": learns}),
        row=_plain(vars(row)),
    )
    critic = critic_of(env, row, network.width)
    each = [start(jax.tree.map(lambda x, i=i: x[i], params), sizes, critic, seed) for i, seed in enumerate(seeds)]
    learners = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    update = Update(env, network, row, sizes, tuple(learns), coach, critic)
    return Plan(options, update, learners, seeds, updates, config)


def made(env_id: str, options: Mapping[str, Any]) -> Env:
    """The environment, the same object for the same options, so that a second run compiles nothing again."""
    name = repr((env_id, sorted(options.items())))
    with bad_input():
        if name not in _MADE:
            _MADE[name] = ddpomdp.make(env_id, **options)
    return _MADE[name]


_MADE: dict[str, Env] = {}


def _check(options: Options, row: Algorithm, env: Env) -> None:
    whole("groups", options.groups, 1, 100_000)
    whole("group_size", options.group_size, 1, 100_000)
    if options.group_size == 1 and row.looks_at_groups():
        raise UsageError("group_size: got 1, allowed: 2 and more, for this algorithm compares members of a group")
    whole("num_ticks", options.num_ticks, 1, env.spec.max_ticks, none=True)
    whole("chunk", options.chunk, 1, 10**7)
    number("learning_rate", options.learning_rate, 0.0, 1e3)
    number("max_norm", options.max_norm, 1e-12, 1e12)
    whole("width", options.width, 1, 4_096)
    choose("stop_head", options.stop_head, STOP_HEADS)
    whole("save_every", options.save_every, 1, 10**9)
    whole("eval_episodes", options.eval_episodes, 0, 10**6)
    whole("devices", options.devices, 1, jax.device_count())
    if options.groups % options.devices:
        raise UsageError(f"devices: got {options.devices}, which does not divide groups {options.groups}")
    for name in options.learns or ():
        if name not in env.spec.roles:
            raise UsageError(refusal("role in learns", name, env.spec.roles))


def _coach(env: Env, options: Options) -> Coach | None:
    """The task's coach where channel `process` has a weight. Raises `UsageError` if it is needed and there is none."""
    if not isinstance(options.coach, Mapping):
        raise UsageError(
            f"coach: got {options.coach!r}, allowed: options of the task's coach, as in coach.accuracy=0.5"
        )
    if not reward_spec(env.options["reward"]).weights.get("process"):
        if options.coach:
            raise UsageError(
                "coach: channel 'process' has no weight in the reward; allowed: env.reward=mappa or hybrid"
            )
        return None
    return coach_of(env, **options.coach)


def _init(env: Env, init: str, options: Options, per_role: bool, seeds: tuple[int, ...]) -> tuple[Network, Any]:
    """The network, and the weights it begins with, leading axis seed."""
    if init == "random":
        network = Network(env, options.width, per_role, stop_head=options.stop_head)
        each = [replace(network, seed=each).init(env) for each in seeds]
        return network, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    if init == "base":
        try:
            start_from = base(env)
        except UsageError as error:
            raise UsageError(f"{error}; init=random begins with fresh weights") from error
        network, params = start_from.network, start_from.params
    else:
        network, params, _ = weights.load(Path(init), env)
    if options.stop_head != "none" and network.stop_head == "none":
        network = replace(network, stop_head=options.stop_head)
        params = network.init(env) | params  # only the head is fresh
    if per_role and not network.per_role:
        network = replace(network, per_role=True)
        params = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(env.spec.roles), *x.shape)), params)
    return network, jax.tree.map(lambda x: jnp.broadcast_to(x, (len(seeds), *x.shape)), params)


@partial(jax.jit, static_argnames=("update",))
def step(
    update: Update, learners: Learner, keys: jax.Array, anchors: Any, env_params: Params
) -> tuple[Learner, dict[str, jax.Array]]:
    """One update of every seed: on a CPU one after the other, elsewhere at once.

    Args:
      update: what to do.
      learners: leading axis seed.
      keys: keys [seeds].
      anchors: weights each seed began with.
      env_params: numbers of the environment.
    """
    each = lambda args: update(args[0], args[1], args[2], env_params)  # noqa: E731
    every = jax.lax.map if jax.default_backend() == "cpu" else lambda fn, args: jax.vmap(fn)(args)
    return every(each, (learners, keys, anchors))


def _one(plan: Plan, state: dict[str, Any], update: int, logs: list[Curves]) -> tuple[dict[str, Any], str]:
    """The state after one more update, and a few words on it."""
    began = time.perf_counter()
    env = plan.update.env
    env_params = scheduled(env.params, reward_spec(env.options["reward"]), (update - 1) / plan.updates)
    keys = jax.vmap(jax.random.key)(jnp.asarray(plan.seeds, jnp.uint32))
    learners, metrics = step(plan.update, state["learners"], keys, plan.learners.params, env_params)
    metrics = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    totals = dict(state["totals"])
    for name in COUNTED:
        per_update = metrics[name] * (metrics["episodes"] if name == "decisions" else 1.0)
        totals[name] = totals[name] + per_update
    took = time.perf_counter() - began
    for index, log in enumerate(logs):
        row = {name: float(values[index]) for name, values in metrics.items()}
        log.write(update, row | {f"total_{name}": float(totals[name][index]) for name in COUNTED})
        log.write_timing(update, {"seconds": took})
    if (worst := int(np.max(np.asarray(learners.skipped)))) >= SKIPS:
        raise FloatingPointError(f"{worst} updates in a row were not finite; the last checkpoint is from before them")
    words = f"reward {metrics['reward'].mean():.3f}, quality {metrics['quality'].mean():.3f}"
    return {"learners": learners, "totals": totals}, words


# Memory ------------------------------------------------------------------------------------------------------------


def memory_bytes(update: Update, seeds: int) -> dict[str, int]:
    """What an update will need, before anything is compiled: episodes, statistics of entries, one chunk's gradient, a
    critic's memory of the traces.

    Shapes of the first are exact. The others are counts of arrays of the largest shapes; docs/performance.md has peaks.
    """
    sizes, spec, width = update.sizes, update.env.spec, update.network.width
    per_decision = 4 * (1 + spec.num_args) * (8 * spec.vocabulary + 6 * width)
    per_parent = 4 * 4 * width * (spec.num_subtasks + spec.roster)
    at_once = 1 if jax.default_backend() == "cpu" else seeds
    entries = sizes.groups * sizes.group_size * sizes.num_ticks * spec.capacity
    rows = update.critic.rows if update.critic is not None and update.critic.reads == "prefix" else 0
    return {
        "episodes": at_once * _bytes_of_episodes(update),
        "statistics": at_once * 4 * 12 * entries,
        "chunk": at_once * (sizes.chunk * per_decision + max(sizes.chunk // 8, 1) * per_parent),
        "traces": at_once * 4 * 16 * width * sizes.groups * sizes.group_size * rows,
    }


@cache
def _bytes_of_episodes(update: Update) -> int:
    learner = jax.eval_shape(lambda: start(update.network.init(update.env), update.sizes, update.critic))
    data = jax.eval_shape(update.play, learner, jax.random.key(0), update.env.params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(data))


def check_memory(plan: Plan) -> None:
    """Say what an update will need; `UsageError` if this machine has not as much."""
    parts = memory_bytes(plan.update, len(plan.seeds))
    need = sum(parts.values())
    shown = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items())
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if here is not None and jax.default_backend() == "cpu" and need > here:
        raise UsageError(
            f"an update needs about {need / 2**30:.1f} GiB ({shown}), this machine has {here / 2**30:.1f}: take fewer "
            "groups, a smaller group_size, num_ticks or chunk"
        )
    print(f"memory per update: about {need / 2**30:.2f} GiB ({shown})", file=sys.stderr, flush=True)


# Folder ------------------------------------------------------------------------------------------------------------


def _folder(out: str | os.PathLike[str] | None, algorithm: str, resume: bool) -> Path:
    if out is not None:
        return Path(out)
    names = (f"train-{algorithm}", *(f"train-{algorithm}-{n}" for n in range(2, 1_000)))
    taken = [Path("runs") / name for name in names if (Path("runs") / name).exists()]
    if resume and len(taken) != 1:
        raise UsageError(f"resume: {len(taken)} runs of {algorithm} under runs/; name one with out")
    if resume:
        return taken[0]
    return next(Path("runs") / name for name in names if Path("runs") / name not in taken)


def _seed_folder(folder: Path, seed: int) -> Path:
    path = folder / f"seed-{seed}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _save(run: checkpoints.Run, logs: list[Curves], update: int, state: dict[str, Any]) -> None:
    """Curves first: no checkpoint may outlive the rows that led to it."""
    for log in logs:
        log.sync()
    run.save(update, state)


def _finish(plan: Plan, folder: Path, state: dict[str, Any]) -> Result:
    """Weights and evaluation into the folder."""
    params = state["learners"].params
    of = lambda tree, index: jax.tree.map(lambda x: x[index], tree)  # noqa: E731
    curves = {each: curve(folder / f"seed-{each}") for each in plan.seeds}
    for index, each in enumerate(plan.seeds):
        weights.save(folder / f"seed-{each}.npz", plan.update.network, of(params, index), {"config": plan.config})
    scores: dict[int, dict[str, dict[str, float]]] = {}
    episodes = plan.options.eval_episodes
    for index, each in enumerate(plan.seeds if episodes else ()):
        score = lambda weights: means(evaluate(plan.update.env, plan.update.network, weights, episodes=episodes))  # noqa: E731
        scores[each] = {"start": score(of(plan.learners.params, index)), "end": score(of(params, index))}
    strictjson.write_atomic(
        folder / "evaluation.json",
        strictjson.dumps({"episodes": episodes, "seeds": {str(k): v for k, v in scores.items()}}, indent=1) + "\n",
    )
    return Result(params, curves, scores, plan.config, folder)


def curve(folder: Path) -> list[dict[str, Any]]:
    """The rows of a seed's curve."""
    return [strictjson.loads(line) for line in (folder / "curves.jsonl").read_text("utf-8").splitlines()]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON data."""
    return strictjson.plain({name: repr(v) if hasattr(v, "weights") else v for name, v in values.items()})
