"""Episodes of an environment and of its twin on the same turns, step by step.

Axis letters: B episode, T tick, N slot.
"""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.harness import AGGREGATE, DELEGATE, DESPAWN, FIRST_TASK_TOOL, MESSAGE, RETURN, SPAWN, STOP, WAIT
from ddpomdp.luck import Purpose, draw
from ddpomdp.pytree import replace
from twin.engine import Twin
from twin.outside import time_step

FIRST_NOISE = Purpose.POLICY + 100


def bits(*tools: int) -> int:
    return sum(1 << tool for tool in tools)


# What leads and others prefer, by mode of an episode; the rest is uniform over what is legal.
WORK = bits(*(FIRST_TASK_TOOL + i for i in range(5)))  # as many as any task has
LEADS = (0, bits(AGGREGATE, DELEGATE, SPAWN), bits(AGGREGATE) | WORK, bits(WAIT, MESSAGE, AGGREGATE))
LEADS = (*LEADS, bits(AGGREGATE, DESPAWN, SPAWN, WAIT))
OTHERS = (0, WORK, WORK, bits(MESSAGE, FIRST_TASK_TOOL), bits(RETURN) | WORK)


def turns_of(env: Any, key: Any, ts: Any, mode: Any, stops: Any, illegal: Any) -> Any:
    """Turns int32[N, 1+A] of one tick: legal ones leaning to a mode, some spoilt."""
    words = [draw(key, ts.lineage, ts.turn, FIRST_NOISE + i) for i in range(5)]
    words = [word[:, i] for word in words for i in range(2)]
    chance = lambda word, percent: (word % 100).astype(jnp.int32) < percent  # noqa: E731
    names = env.spec.self_features
    feature = lambda name: ts.observation.self[:, names.index(name)]  # noqa: E731
    tools = ts.legal.tools
    lead = feature("is_lead") > 0
    wish = jnp.where(lead, jnp.asarray(LEADS)[mode], jnp.asarray(OTHERS)[mode])
    done = ~lead & (mode > 0) & (feature("rows_left") == 0)
    if "row_in_progress" in names:
        done = done & (feature("row_in_progress") == 0)
    wish = jnp.where(done, bits(RETURN), wish)
    leaning = chance(words[0], 80) & (tools & wish != 0)
    tools = jnp.where(leaning, tools & wish, tools)
    may_stop = chance(words[1], stops)
    tools = jnp.where(may_stop | (tools == 1 << STOP), tools, tools & ~(1 << STOP))
    turns = env.harness.sample(words[2 : 3 + env.spec.num_args], replace(ts.legal, tools=tools))
    place = (words[7] % (1 + env.spec.num_args)).astype(jnp.int32)
    value = (words[8] % 14).astype(jnp.int32) - 1
    spoilt = chance(words[9], illegal)[:, None] & (jnp.arange(1 + env.spec.num_args) == place[:, None])
    return jnp.where(spoilt, value[:, None], turns)


def record(env: Any, episodes: int, ticks: int, seed: int) -> Any:
    """Keys, the first TimeStep, turns and TimeSteps [B, T, ...] of a batch, as numpy."""
    index = jnp.arange(episodes)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(index)
    lucks = jax.vmap(lambda key: jax.random.fold_in(key, 7))(keys)
    modes = index % len(LEADS)
    stops = jnp.where(index % 3 == 0, 10, 1)
    illegal = jnp.where(index % 2 == 0, 5, 0)

    @jax.jit
    @jax.vmap
    def play(key, luck, mode, stops, illegal):
        state, first = env.reset(key, luck)

        def tick(carry, _):
            state, ts = carry
            turns = turns_of(env, jax.random.fold_in(luck, 2), ts, mode, stops, illegal)
            state, ts = env.step(luck, state, turns)
            return (state, ts), (turns, ts)

        (state, _), (turns, steps) = jax.lax.scan(tick, (state, first), None, length=ticks)
        return first, turns, steps, state.late  # late: due to lives after their end

    first, turns, steps, late = jax.tree.map(np.asarray, play(keys, lucks, modes, stops, illegal))
    words = lambda ks: np.asarray(jax.random.key_data(ks))  # noqa: E731
    return words(keys), words(lucks), first, turns, steps, late


def flat(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Leaves by dotted names, of pytrees and dictionaries alike."""
    if isinstance(tree, dict):
        items = tree.items()
    elif hasattr(tree, "__dataclass_fields__"):
        items = ((name, getattr(tree, name)) for name in tree.__dataclass_fields__)
    else:
        return {path: np.asarray(tree)}
    return {k: v for name, sub in items for k, v in flat(sub, f"{path}.{name}" if path else name).items()}


def differing(ours: dict, theirs: dict) -> list[str]:
    """Names of leaves that differ: integers exactly, floats by more than 1e-5."""
    bad = []
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if (
            a is None
            or b is None
            or a.shape != b.shape
            or (not (a == b).all() and not (b.dtype.kind == "f" and np.allclose(a, b, rtol=1e-5, atol=1e-5)))
        ):
            bad.append(name)
    return bad


def episode(env, key, luck, first, turns, steps, after=2):
    """Yield (tick, twin, what the twin shows, what the engine shows) until shortly after the end."""
    pair = lambda words: tuple(int(word) for word in words)  # noqa: E731
    twin = Twin(env, pair(key), pair(luck))
    yield -1, twin, None, flat(time_step(twin)), first
    for tick in range(len(turns)):
        after -= twin.last
        if after < 0:
            return
        twin.step(turns[tick])
        ours, theirs = flat(time_step(twin)), {name: values[tick] for name, values in steps.items()}
        yield tick, twin, turns[tick], ours, theirs


class Tally:
    """What happened in the episodes compared."""

    def __init__(self):
        self.ticks = self.episodes = self.fields = 0
        self.seen: Counter = Counter()

    def add(self, twin, theirs):
        self.ticks += 1
        for name in ("result_code", "end_reason"):
            at = theirs["events.uid"] >= 0
            self.seen.update((name, int(x)) for x in theirs[f"events.{name}"][at])
        for name in ("role", "debate", "tool"):
            paid = theirs[f"channels.{name}"]
            self.seen.update({(name, "+"): (paid > 0).any(), (name, "-"): (paid < 0).any()})
        tainted, trusted = theirs["events.tainted"], theirs["events.trusted"]
        self.seen.update({("tainted", "trusted"): (tainted & trusted).any(), ("tainted", "not"): (~trusted).sum()})
        for life, r in ((r.life, r) for r in twin.records.values() if r.acting):
            self.seen.update([("tool", r.tool), ("role", life.role), ("depth", life.depth)])
            self.seen["listens"] += r.listens
            if r.tool in ("aggregate", "wait", "delegate", "message", "return"):
                self.seen.update((r.tool, value) for value in map(str, r.args.values()))

    def end(self, twin, theirs):
        self.episodes += 1
        self.seen["stop_reason", int(theirs["stop_reason"])] += 1
        for name, value in theirs.items():
            if name.startswith("info."):
                self.seen[name] += float(value) > 0
        self.seen["late"] += any(abs(x) > 0 for x in twin.late.values())


def play_and_compare(name: str, env: Any, episodes: int, ticks: int, seed: int, tally: Tally) -> None:
    """Compare a batch of one setting, called `name`, with the twin; the first difference is an error."""
    keys, lucks, first, turns, steps, late = record(env, episodes, ticks, seed)
    first, steps = flat(first), flat(steps)
    for b in range(episodes):
        of = [{name: values[b] for name, values in tree.items()} for tree in (first, steps)]
        for tick, twin, tokens, ours, theirs in episode(env, keys[b], lucks[b], of[0], turns[b], of[1]):
            bad = differing(ours, theirs)
            told = "".join(f"\n{x}\n  twin   {ours.get(x)}\n  engine {theirs.get(x)}" for x in bad)
            assert not bad, f"{name}, episode {b}, tick {tick}, turns {tokens}: {told}"
            tally.fields = len(theirs)
            if twin.records:
                tally.add(twin, theirs)
        owed = np.zeros(late.shape[1], np.float32)
        for uid, amount in twin.late.items():
            owed[uid] = amount
        np.testing.assert_allclose(owed, late[b], atol=1e-5)
        tally.end(twin, theirs)


def assert_happened(tally: Tally, *what: Any) -> None:
    missing = [x for x in what if not tally.seen[x]]
    assert not missing, f"never happened: {missing}"
