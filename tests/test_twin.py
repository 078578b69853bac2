"""The engine against its slow twin in plain Python (tests/twin), step by step on the same turns.

Axis letters: B episode, T tick, N slot.
"""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import play
import pytest
from twin import luck
from twin.engine import BUDGET, DESPAWNED, HORIZON, STOPPED, WITH_EPISODE, Twin
from twin.outside import time_step

from ddpomdp import make
from ddpomdp.harness import AGGREGATE, DELEGATE, DESPAWN, MESSAGE, RETURN, SPAWN, STOP, WAIT
from ddpomdp.luck import Purpose, child_lineage, draw, unit
from ddpomdp.pytree import replace

SEARCH, CHECK = 8, 9
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {"preset": "tiny"},
    "swarm": {**play.SHAPES["swarm"], "reward": "hybrid"},
    "single": {"preset": "tiny", "topology": "single", "max_ticks": 64, "model": "weak", "max_turns": 40},
    "small": {"preset": "small", "max_ticks": 100, "reward": "tool"},
    "weak": {"preset": "small", "max_ticks": 90, "model": "weak", "capacity": 12, "num_subtasks": 16, "poison": 0.4},
    "hierarchical": {**play.SHAPES["hierarchical"], "reward": "parl"},
    "deep": {
        "preset": "small",
        "topology": "hierarchical",
        "capacity": 12,
        "num_subtasks": 12,
        "claims_per_row": 2,
        "max_ticks": 120,
        "lead_blocks": False,
        "max_tokens": 60_000,
        "model": "weak",
        "delegate_chunks": (1, 2, "even"),
        "delegate_briefs": ("short", "standard", "detailed"),
        "counts": (1, 2, 4),
        "correlation": 0.3,
        "wait_limit_ms": 20_000,
    },
}
SLOW = {"tiny": 80, "swarm": 70, "single": 60, "small": 60, "weak": 50, "hierarchical": 70, "deep": 70, "narrow": 50}
FIRST_NOISE = Purpose.POLICY + 100


def bits(*tools: int) -> int:
    return sum(1 << tool for tool in tools)


# What leads and others prefer, by mode of an episode; the rest is uniform over what is legal.
LEADS = (0, bits(AGGREGATE, DELEGATE, SPAWN), bits(AGGREGATE, SEARCH, CHECK), bits(WAIT, MESSAGE, AGGREGATE))
LEADS = (*LEADS, bits(AGGREGATE, DESPAWN, SPAWN, WAIT))
OTHERS = (0, bits(SEARCH, CHECK), bits(SEARCH, CHECK), bits(MESSAGE, SEARCH), bits(SEARCH, CHECK, RETURN))


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
    done = ~lead & (mode > 0) & (feature("rows_left") == 0) & (feature("row_in_progress") == 0)
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
        for life, r in ((r.life, r) for r in twin.records.values() if r.acting):
            self.seen.update([("tool", r.tool), ("role", life.role), ("depth", life.depth)])
            if r.tool in ("aggregate", "wait", "delegate", "message", "return"):
                self.seen.update((r.tool, value) for value in map(str, r.args.values()))

    def end(self, twin, theirs):
        self.episodes += 1
        self.seen["stop_reason", int(theirs["stop_reason"])] += 1
        for name, value in theirs.items():
            if name.startswith("info."):
                self.seen[name] += float(value) > 0
        self.seen["late"] += any(abs(x) > 0 for x in twin.late.values())


def environment(name: str) -> Any:
    return play.make_shape("narrow") if name == "narrow" else make("Search-v0", **SETTINGS[name])


def play_and_compare(name: str, episodes: int, ticks: int, seed: int, tally: Tally) -> None:
    """Compare a batch of one setting with the twin; the first difference is an error."""
    env = environment(name)
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


TOOLS = ("wait", "spawn", "delegate", "message", "return", "aggregate", "despawn", "stop", "search", "check")
ALWAYS = (
    *(("tool", tool) for tool in TOOLS),
    *(("result_code", code) for code in range(10)),
    *(("end_reason", end) for end in (DESPAWNED, WITH_EPISODE)),
    *(("aggregate", rule) for rule in ("majority", "verdict", "best", "last", "union")),
    *(("delegate", rows) for rows in ("next", "missing", "conflicting", "again")),
    *(("message", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("return", claims) for claims in ("all", "new", "best", "disputed", "summary", "full")),
    *(("wait", what) for what in ("one", "half", "all")),
    *(f"info.{name}" for name in ("adopted", "illegal", "refused_births", "refused_claims", "empty_selections")),
    *(f"info.{name}" for name in ("lost_returns", "mail_undeliverable", "mail_late", "mail_in_flight", "beyond_end_s")),
    *(f"info.{name}" for name in ("quality", "critical_steps", "returned_lives", "deaths")),
    ("stop_reason", STOPPED),
    "late",
)


def test_the_hash_of_luck():
    rng = np.random.default_rng(0)
    for _ in range(50):
        key, lineage = (rng.integers(0, 2**32, 2, dtype=np.uint32) for _ in range(2))
        turn, purpose = int(rng.integers(0, 1000)), int(rng.integers(0, 20))
        theirs = draw(jnp.asarray(key), jnp.asarray(lineage), jnp.int32(turn), purpose)
        ours = luck.draw(tuple(map(int, key)), tuple(map(int, lineage)), turn, purpose)
        assert ours == tuple(int(x) for x in theirs)
        assert luck.unit(ours[0]) == float(unit(theirs[0]))
        child = luck.child(tuple(map(int, lineage)), turn, 3)
        assert child == tuple(int(x) for x in child_lineage(jnp.asarray(lineage), jnp.int32(turn), jnp.int32(3)))


def test_engine_and_twin_agree():
    tally = Tally()
    play_and_compare("deep", 60, 70, 5, tally)
    assert_happened(tally, *ALWAYS)
    assert tally.ticks > 2_000


@pytest.mark.slow
def test_engine_and_twin_agree_in_500_episodes():
    tally = Tally()
    for name, episodes in SLOW.items():
        play_and_compare(name, episodes, environment(name).spec.max_ticks + 2, 11, tally)
    assert_happened(
        tally, *ALWAYS, ("stop_reason", BUDGET), ("stop_reason", HORIZON), ("depth", 3), "info.success", "info.row_f1"
    )
    assert_happened(tally, "info.refused_rows", "info.refused_places")
    assert tally.episodes >= 500
