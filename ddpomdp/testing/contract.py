"""Shapes, types, sizes, names; what JAX is given; steps that change nothing but what they return."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ddpomdp.harness import BOUNDS, CORE_TOOLS
from ddpomdp.testing.checks import PLAYS, check
from ddpomdp.testing.episodes import Broken, Trial, want
from ddpomdp.testing.trees import difference, differing, numpy
from ddpomdp.timestep import CHANNELS

WIDE = ("float64", "complex64", "complex128")


@check(PLAYS)
def plays(trial: Trial) -> int:
    """Random legal turns can be played."""
    return sum(len(episode.turns) for episode in trial.episodes)


@check("contract.forms")
def forms(trial: Trial) -> int:
    """`reset` and `step` return the same structure, shapes and dtypes, at every tick."""
    for episode in trial.episodes:
        want(episode.odd is None, f"step against reset: {episode.odd} in episode {episode.index}")
        last = len(episode.states) - 1
        odd = difference(episode.states[last], episode.states[0])
        want(odd is None, f"state against that of reset: {odd}")
    return sum(len(episode.turns) for episode in trial.episodes)


@check("contract.fields")
def fields(trial: Trial) -> int:
    """TimeStep, Observation and Event have their documented dtypes and leading axes."""
    spec = trial.spec
    n, p, r = spec.capacity, spec.max_parents, spec.roster
    args = 1 + spec.num_args
    flags, ints, floats = ("bool", (n,)), ("int32", (n,)), ("float32", (n,))
    _, ts = trial.reset(*trial.keys(0))
    of_lives = {
        **dict.fromkeys(("terminated", "truncated", "alive", "blocked"), flags),
        **dict.fromkeys(("uid", "turn"), ints),
        "reward": floats,
        "lineage": ("uint32", (n, 2)),
        "last": ("bool", ()),
        "stop_reason": ("int32", ()),
    }
    of_events = dict.fromkeys(type(ts.events).__dataclass_fields__, ints) | {
        **dict.fromkeys(("valid", "is_decision", "trusted", "tainted"), flags),
        "tokens": ("int32", (n, args)),
        "cost_tokens": ("int32", (n, 4)),
    }
    of_events.pop("channels", None)
    of_eyes = {
        "self": ("float32", (n, len(spec.self_features))),
        "claims": ("float32", (n, spec.observed_claims, len(spec.claim_features))),
        "parent_slot": ("int32", (p,)),
        "roster": ("float32", (p, r, len(spec.roster_features))),
        "roster_uid": ("int32", (p, r)),
    }
    of_legal = {"tools": ints, "whom": ints, "bounds": ("int32", (n, len(BOUNDS)))}
    parts = ((ts, of_lives), (ts.events, of_events), (ts.observation, of_eyes), (ts.legal, of_legal))
    compared = 0
    for part, expected in parts:
        for name, (dtype, shape) in expected.items():
            got = getattr(part, name, None)
            want(got is not None, f"{type(part).__name__} has no {name}")
            got = np.asarray(got)
            said = f"{type(part).__name__}.{name}: got {got.dtype}{list(got.shape)}, must be {dtype}{list(shape)}"
            want((str(got.dtype), got.shape) == (dtype, shape), said)
            compared += 1
    for where in (ts.channels, ts.events.channels):
        want(set(where) >= set(CHANNELS), f"channels {sorted(where)}: {sorted(set(CHANNELS) - set(where))} missing")
        for name, value in where.items():
            want((str(value.dtype), value.shape) == floats, f"channel {name}: {value.dtype}{list(value.shape)}")
    for name, value in ts.info.items():
        number = np.asarray(value)
        want(number.shape == () and number.dtype.kind in "iuf", f"info {name}: {number.dtype}{list(number.shape)}")
    return compared


@check("contract.spec")
def spec_agrees(trial: Trial) -> int:
    """Sizes and names in env.spec agree with the harness, its menu and the arrays."""
    spec, harness = trial.spec, trial.env.harness
    turns = trial.episodes[0].turns
    for name, got, expected in (
        ("capacity and num_args", turns.shape[1:], (spec.capacity, 1 + spec.num_args)),
        ("num_args", spec.num_args, max(len(tool.arguments) for tool in harness.tools)),
        ("tools", tuple(spec.tools), tuple(tool.name for tool in harness.tools)),
        ("the first tools", tuple(spec.tools[: len(CORE_TOOLS)]), CORE_TOOLS),
        ("roles", tuple(spec.roles), tuple(harness.roles)),
        ("max_lives", tuple(spec.max_lives), tuple(spec.roles)),
        ("the first role", spec.roles[0], "lead"),
        ("vocabulary", spec.vocabulary, harness.vocabulary),
        ("menu_size", spec.menu_size, harness.menu_size),
    ):
        want(got == expected, f"{name}: spec says {got}, found {expected}")
    named = ("self_features", "claim_features", "roster_features")
    for name in named:
        names = getattr(spec, name)
        want(len(set(names)) == len(names), f"{name}: names twice in {names}")
    roles = [f"is_{role}" for role in spec.roles]
    want(list(spec.self_features[: len(roles)]) == roles, f"self_features start with {spec.self_features}, not {roles}")
    for episode in trial.episodes:
        shown = episode.after.observation.self[..., : len(roles)]
        is_one = np.where(episode.after.alive, shown.sum(axis=-1) == 1, True)
        episode.must(is_one, "the first features name one role", features=shown.sum(axis=-1))
        lived = episode.after.alive & ~episode.born
        said = np.argmax(shown, axis=-1)
        episode.must(
            ~lived | (said == episode.after.events.role), "role", observed=said, event=episode.after.events.role
        )
    return len(named) + 9


@check("contract.finite")
def finite(trial: Trial) -> int:
    """Observations, rewards, channels and info are finite."""
    looked_at = 0
    for episode in trial.episodes:
        after = episode.after
        parts = {
            "observation": after.observation,
            "reward": after.reward,
            "channels": after.channels,
            "info": after.info,
        }
        for path, value in jax.tree_util.tree_leaves_with_path(parts):
            if value.dtype.kind == "f":
                episode.must(np.isfinite(value), f"{jax.tree_util.keystr(path)} is finite", value=value)
                looked_at += value.size
    return looked_at


@check("contract.observe")
def observes(trial: Trial) -> int:
    """`observe(state)` is what fills ts.observation."""
    compared = 0
    for episode, tick in trial.places(6):
        for at, shown in ((tick, episode.seen), (len(episode.turns), None)):
            expected = jax.tree.map(lambda x: x[at], shown) if shown else jax.tree.map(lambda x: x[-1], episode.after)  # noqa: B023
            odd = differing(trial.observe(episode.states[at]), expected.observation)
            want(not odd, f"observe(state) differs in {', '.join(odd)} in episode {episode.index}, tick {at}")
            compared += 1
    return compared


@check("contract.pure")
def pure(trial: Trial) -> int:
    """`step` changes none of its inputs, and gives the same when called again."""
    compared = 0
    for episode, tick in trial.places(9):
        state, turns = episode.states[tick], episode.turns[tick].copy()
        before = numpy(state)
        first = numpy(trial.step(episode.luck, state, turns))
        where = f"in episode {episode.index}, tick {tick}"
        want((turns == episode.turns[tick]).all(), f"step wrote into its turns {where}")
        odd = differing(state, before)
        want(not odd, f"step changed the state it was given: {', '.join(odd)} {where}")
        odd = differing(trial.step(episode.luck, state, turns), first)
        want(not odd, f"a second call gave something else: {', '.join(odd[:5])} {where}")
        compared += 1
    return compared


@check("contract.compiles-once", traces=True)
def compiles_once(trial: Trial) -> int:
    """One compilation of reset and of step serves all ticks."""
    ticks = sum(len(episode.turns) for episode in trial.episodes)
    for name in ("reset", "step"):
        want(trial.traced[name] == 1, f"{name} was compiled {trial.traced[name]} times in {ticks} ticks")
    return ticks


@check("contract.portable", traces=True)
def portable(trial: Trial) -> int:
    """No 64-bit floats and no calls of the host; in JAX's 64-bit mode every output keeps its type."""
    env, episode = trial.env, trial.episodes[0]
    shown = jax.tree.map(lambda x: x[0], episode.seen)
    looked_at = 0
    for name, function, args in (
        ("reset", env.reset, (episode.key, episode.luck)),
        ("step", env.step, (episode.luck, episode.states[0], episode.turns[0])),
    ):
        for primitive, dtypes in _equations(_trace(function, args)[0].jaxpr):
            want("callback" not in primitive, f"{name} calls the host: {primitive}")
            wide = [dtype for dtype in dtypes if dtype in WIDE]
            want(not wide, f"{name} computes in {', '.join(wide)}: {primitive}")
            looked_at += 1
        with jax.enable_x64(True):
            odd = difference(_trace(function, args)[1], (episode.states[0], shown))
        want(odd is None, f"{name} in 64-bit mode: {odd}")
    return looked_at


def _trace(function: Any, args: tuple) -> tuple[Any, Any]:
    """(program, shapes of what it returns), traced anew."""
    return jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)


def _equations(jaxpr: Any) -> Iterator[tuple[str, list[str]]]:
    """(name of the primitive, dtypes of its results) of every equation, at any depth."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, [str(getattr(var.aval, "dtype", "")) for var in equation.outvars]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


@check("contract.batches", traces=True)
def batches(trial: Trial) -> int:
    """`vmap` over episodes gives the bits of the episodes one by one."""
    some = [episode for episode in trial.episodes if len(episode.turns) > 2][:3]
    if not some:
        return 0
    stacked = jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *[episode.states[0] for episode in some])
    luck = jax.numpy.stack([episode.luck for episode in some])
    step = jax.jit(jax.vmap(lambda luck, state, turns: trial.env.step(luck, state, turns)))
    ticks = min(len(episode.turns) for episode in some)
    for tick in range(ticks):
        stacked, ts = step(luck, stacked, np.stack([episode.turns[tick] for episode in some]))
        ts = numpy(ts)
        for i, episode in enumerate(some):
            odd = differing(jax.tree.map(lambda x: x[i], ts), jax.tree.map(lambda x: x[tick], episode.after))  # noqa: B023
            want(not odd, f"vmap differs in {', '.join(odd[:5])} in episode {episode.index}, tick {tick}")
    return ticks * len(some)


@check("contract.uncompiled", traces=True, thorough=True)
def uncompiled(trial: Trial) -> int:
    """Steps without compilation: integers and flags equal, floats to 1e-5."""
    episode, ticks = trial.long, min(3, len(trial.long.turns))
    with jax.disable_jit():
        for tick in range(ticks):
            slow = trial.env.step(episode.luck, episode.states[tick], episode.turns[tick])
            fast = (episode.states[tick + 1], jax.tree.map(lambda x: x[tick], episode.after))  # noqa: B023
            for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(slow), jax.tree.leaves(fast), strict=True):
                x, y = np.asarray(x), np.asarray(y)
                close = np.allclose(x, y, rtol=1e-5, atol=1e-5) if x.dtype.kind == "f" else (x == y).all()
                want(close, f"{jax.tree_util.keystr(path)}: got {x.tolist()}, compiled {y.tolist()} in tick {tick}")
    return ticks


@check("contract.after-last")
def after_last(trial: Trial) -> int:
    """A step after `last` changes nothing: state kept, rewards 0, rows not alive, events invalid."""
    ended = [episode for episode in trial.episodes if episode.ended]
    for episode in ended:
        state, before = episode.states[-1], jax.tree.map(lambda x: x[-1], episode.after)
        for turns in (np.zeros_like(episode.turns[0]), episode.turns[0], episode.turns[-1]):
            kept, ts = trial.step(episode.luck, state, turns)
            ts = numpy(ts)
            where = f"after the end of episode {episode.index}"
            odd = differing(kept, state)
            want(not odd, f"the state changed {where}: {', '.join(odd)}")
            for name, ok in (
                ("last", bool(ts.last)),
                ("alive", not ts.alive.any()),
                ("reward", (ts.reward == 0).all()),
                ("terminated", not ts.terminated.any()),
                ("truncated", not ts.truncated.any()),
                ("stop_reason", ts.stop_reason == before.stop_reason),
                ("events.valid", not ts.events.valid.any()),
                ("events.uid", (ts.events.uid == -1).all()),
                ("channels", all((value == 0).all() for value in ts.channels.values())),
                ("info", not differing(ts.info, before.info)),
            ):
                if not ok:
                    raise Broken(f"{name} {where}: got {np.asarray(getattr(ts, name, ts.events.valid)).tolist()}")
    return len(ended)
