"""Branches in batches: random play from a state on, twice, with the same luck and one decision changed.

A closure over what happened says who is downstream of the decision; everyone else must be the same, bit for bit,
compared per life and own turn.

Axis letters: B batch, T tick, N slot, P parent place.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import make
from ddpomdp.enums import EventKind, Group, LifeEnd, ResultCode
from ddpomdp.harness import AGGREGATE, DELEGATE, DESPAWN, FIRST_TASK_TOOL, MESSAGE, RETURN, SPAWN, STOP, WAIT
from ddpomdp.luck import Purpose, draw, share
from ddpomdp.pytree import replace

BRANCHES, TICKS = 120, 40
FIRST, LAST = 6, 24  # ticks in which decisions are changed
# Nothing binds: places for everyone ever born, 16 entries per row, no end within TICKS.
WIDE: dict[str, Any] = {
    "preset": "tiny",
    "capacity": 40,
    "num_subtasks": 24,
    "claims_per_row": 16,
    "max_ticks": 1_000,
    "poison": 0.2,
    "unanswerable": 0.2,
    "counts": (1, 2, 3),
}
RARE = {
    SPAWN: 0.3,
    MESSAGE: 0.1,
    DESPAWN: 0.1,
    STOP: 0.0,
    DELEGATE: 0.3,
    RETURN: 0.3,
}  # how often these are taken into account
NEVER = 10**6  # an own turn that never comes


@dataclass(frozen=True, eq=False)
class Game:
    """An environment compiled for 2 BRANCHES episodes at a time."""

    env: Any
    reset: Callable
    step: Callable
    turns: Callable  # (noise, TimeStep) to turns
    other: Callable  # the same, with rare calls as likely as any but `stop`
    spawn: Callable  # the same, spawning where that is legal


@cache
def game(topology: str) -> Game:
    """The wide environment of a topology."""
    env = make("Search-v0", topology=topology, **WIDE)
    each = lambda *how: jax.jit(jax.vmap(lambda key, ts: quiet(env, key, ts, *how)))  # noqa: E731
    only_spawn = {tool: 0.0 for tool in range(len(env.harness.tools)) if tool not in (WAIT, SPAWN)}
    return Game(
        env,
        reset=jax.jit(jax.vmap(env.reset)),
        step=jax.jit(jax.vmap(env.step)),
        turns=each(RARE),
        other=each({STOP: 0.0}),
        spawn=each(only_spawn, 0.0),
    )


def quiet(env: Any, key: jax.Array, ts: Any, rare: dict[int, float], waits: float = 0.3) -> jax.Array:
    """Random legal turns that mostly work; by lineage and own turn number.

    Calls in `rare` are taken into account so often only, and so is `wait` by `waits` where there is a choice.
    """
    word = draw(key, ts.lineage, ts.turn, Purpose.POLICY + 9)
    tools = ts.legal.tools
    for i, (tool, chance) in enumerate(rare.items()):
        out = share(word[:, i // 3 % 2], 8 * (i % 3), 8) >= chance
        tools = jnp.where(out, tools & ~(1 << tool), tools)
    leads, works = ts.observation.self[:, 0] > 0, tools & ~((1 << FIRST_TASK_TOOL) - 1)
    tools = jnp.where((works > 0) & (share(word[:, 0], 24, 8) < jnp.where(leads, 0.1, 0.85)), works, tools)
    column = env.spec.self_features.index("has_handed_out")
    first = leads & (ts.observation.self[:, column] == 0) & (ts.turn == 1) & ((ts.legal.tools >> SPAWN) & 1 == 1)
    tools = jnp.where(first, 1 << SPAWN, tools)
    # Without a child, and so without a parent place, reading is refused; many leads would run out of places.
    childless, few = ts.legal.bounds[:, 3] == 0, share(word[:, 1], 16, 8) < 0.8
    tools = jnp.where(childless, tools & ~(1 << AGGREGATE), tools)
    roles = jnp.where(few, jnp.minimum(ts.legal.bounds[:, 1], 2), ts.legal.bounds[:, 1])
    legal = replace(ts.legal, bounds=ts.legal.bounds.at[:, 1].set(roles))
    goes_on = share(word[:, 1], 24, 8) >= waits
    tools = jnp.where((tools & ~1 > 0) & goes_on, tools & ~1, tools)
    pairs = (2 + env.spec.num_args) // 2
    words = [draw(key, ts.lineage, ts.turn, Purpose.POLICY + i) for i in range(pairs)]
    flat = [word[:, i] for word in words for i in range(2)]
    return env.harness.sample(flat[: 1 + env.spec.num_args], replace(legal, tools=tools))


# Playing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Played:
    """BRANCHES pairs: episode b and, at BRANCHES + b, the same with one decision changed. Numpy, [T, 2B, N, ...]."""

    env: Any
    ts: Any  # TimeStep before the turn
    turns: np.ndarray
    after: Any  # TimeStep the turn led to
    seen: dict[str, np.ndarray]  # hidden fields before the turn; TICKS + 1 of them
    tick: np.ndarray  # int[B]  when the decision was changed
    slot: np.ndarray  # int[B]


def play(
    game: Game,
    seed: int,
    *,
    births: bool = False,
    prepare: Callable[[Any], Any] = lambda state: state,
    state_fault: Callable[[Any], Any] | None = None,
    luck_fault: Callable[[jax.Array, int], jax.Array] | None = None,
    noise_fault: Callable[[jax.Array, Any], jax.Array] | None = None,
) -> Played:
    """Play BRANCHES pairs.

    Args:
      game: what to play.
      seed: draws tasks, luck and the decisions changed.
      births: the decisions changed are those of who may spawn and did not, and does then.
      prepare: changes the states to start from, such as to bring limits near.
      state_fault: a planted fault: changes states after each step.
      luck_fault: a planted fault: (luck, tick) to the luck used.
      noise_fault: a planted fault: (noise, TimeStep) to the policy's noise.
    """
    rng = np.random.default_rng(seed)
    half = jax.random.split(jax.random.key(seed), BRANCHES)
    keys = jnp.concatenate([half, half])
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    noise = jax.vmap(lambda key: jax.random.fold_in(key, 2))(keys)
    strange = jax.vmap(lambda key: jax.random.fold_in(key, 3))(keys)
    when, where = rng.integers(FIRST, LAST, BRANCHES), np.full(BRANCHES, -1)
    state, ts = game.reset(keys, luck)
    state = prepare(state)
    shown, all_turns, after, seen = [], [], [], [_seen(state)]
    for t in range(TICKS):
        turns = np.array(game.turns(noise if noise_fault is None else noise_fault(noise, ts), ts))
        others = np.asarray((game.spawn if births else game.other)(strange, ts))
        tools, acting = np.asarray(ts.legal.tools), _acts(seen[-1])
        for b in np.flatnonzero(when == t):
            wanted = (others[b, :, 0] == SPAWN) & (turns[b, :, 0] != SPAWN) if births else tools[b] != 1
            deciders = np.flatnonzero(acting[b] & wanted)
            if len(deciders) == 0:  # nobody does: a tick later
                when[b] += 1
                continue
            slot = where[b] = rng.choice(deciders)
            same = (others[b, slot] == turns[b, slot]).all()
            turns[BRANCHES + b, slot] = 0 if same else others[b, slot]
        before = ts
        state, ts = game.step(luck if luck_fault is None else luck_fault(luck, t), state, turns)
        state = state if state_fault is None else state_fault(state)
        if state_fault is not None:
            ts = replace(ts, lineage=state.lives.lineage)
        shown.append(jax.tree.map(np.asarray, before))
        after.append(jax.tree.map(np.asarray, replace(ts, observation=None)))
        all_turns.append(turns)
        seen.append(_seen(state))
    stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)  # noqa: E731
    return Played(game.env, stack(shown), np.stack(all_turns), stack(after), stack(seen), when, where)


def _seen(state: Any) -> dict[str, np.ndarray]:
    lives = jax.tree.map(np.asarray, state.lives)
    holder, place = np.asarray(state.place_slot), np.maximum(lives.home, 0)
    parent = np.take_along_axis(lives.uid, np.maximum(np.take_along_axis(holder, place, 1), 0), 1)
    names = ("alive", "uid", "turn", "clock_ms", "blocked", "returned", "arrival_ms", "place")
    return {name: getattr(lives, name) for name in names} | {
        "parent_uid": np.where(lives.alive & (lives.home >= 0), parent, -1),
        "mail": np.asarray(state.mail.count),
    }


def _acts(seen: dict[str, np.ndarray]) -> np.ndarray:
    return seen["alive"] & ~seen["returned"] & ~seen["blocked"]


# One episode, by life ------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What one episode says, by life: a life is named by its birth, so that both of a pair use the same names."""

    rows: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (life, own turn): all that was seen and done
    heard: dict[tuple[int, int], tuple] = field(default_factory=dict)  # the same, of what came in until the next turn
    turns: list[tuple[int, int, int, int]] = field(default_factory=list)  # (tick, slot, life, own turn)
    lives: set[int] = field(default_factory=set)
    # Causes, in order of ticks: (life, own turn) acts on (life, own turn from which it is different).
    acts_on: list[tuple[int, int, int, int]] = field(default_factory=list)
    races: dict[tuple, int] = field(
        default_factory=dict
    )  # (what, number, life, own turn, life): own turn of the latter
    touched: list[tuple[int, int, int]] = field(default_factory=list)  # by a limit: (tick, life, own turn)


def tell(played: Played, b: int, names: dict[tuple, int]) -> Told:
    """The b-th of the 2B episodes; `names` collects names of lives over a pair."""
    told, seen, events = Told(), {name: x[:, b] for name, x in played.seen.items()}, played.after.events
    life = {0: names.setdefault(("root",), 0)}  # by uid
    letters: dict[int, list[tuple[int, int]]] = {}  # in the mailbox place of a uid: (life, own turn) of the senders
    acting = _acts(seen)
    row_of = _rows(played, b)
    fields = {name: np.asarray(getattr(events, name))[:, b] for name in _USED}
    open_turn: dict[int, tuple[int, int]] = {}
    for t in range(TICKS):
        now, then = ({name: x[i] for name, x in seen.items()} for i in (t, t + 1))
        e = {name: x[t] for name, x in fields.items()}
        here = np.flatnonzero(now["alive"])
        slot_of = {int(now["uid"][n]): int(n) for n in here}
        own = {n: (life[int(now["uid"][n])], int(now["turn"][n])) for n in here}
        next_turn = {n: own[n][1] + int(acting[t, n]) for n in here}
        parent = {n: slot_of.get(int(now["parent_uid"][n]), -1) for n in here}

        # A return that has arrived by its parent's clock is there to be seen; it was made in the child's last turn.
        for c in here:
            p = parent[c]
            if p >= 0 and acting[t, p] and now["returned"][c] and now["arrival_ms"][c] <= now["clock_ms"][p]:
                told.acts_on.append((own[c][0], own[c][1] - 1, *own[p]))

        for n in here:
            if not acting[t, n]:
                continue
            me, k = own[n]
            told.turns.append((t, n, me, k))
            target = int(e["target_uid"][n])
            told.rows[me, k] = row_of(t, n, life) + bytes(str(life.get(target, -1)), "ascii")
            open_turn[me] = (me, k)
            told.heard[me, k] = (0, True, False)
            if e["refused"][n] or (e["kind"][n] in _SERVED and e["result_code"][n] == ResultCode.REFUSED):
                told.touched.append((t, me, k))
        for n in here:  # what comes in counts to the last own turn
            key = open_turn.get(own[n][0])
            if key is not None:
                count, trusted, tainted = told.heard[key]
                told.heard[key] = (
                    count + int(e["claims_received"][n]),
                    trusted and bool(e["trusted"][n]),
                    tainted or bool(e["tainted"][n]),
                )

        _births(now, then, own, slot_of, life, names, told)
        for n in here:
            p = parent[n]
            if p < 0:
                continue
            if e["end_reason"][n] == LifeEnd.DESPAWNED:
                told.acts_on.append((*own[p], *own[n]))
                told.races["despawned", 0, *own[p], own[n][0]] = own[n][1]
                for c in here:
                    if parent[c] == n:  # adopted: whom it reports to changes
                        told.acts_on.append((*own[p], own[c][0], next_turn[c]))
                        told.acts_on.append((*own[n], own[c][0], next_turn[c]))
            elif now["returned"][n] and not then["returned"][n]:
                told.acts_on.append((*own[p], own[n][0], next_turn[n]))  # handed work again
        _mail(t, now, then, e, acting[t], own, next_turn, parent, letters, told)
    return told


_USED = ("target_uid", "refused", "kind", "result_code", "claims_received", "trusted", "tainted", "end_reason")
_USED += ("target_group", "arrival_ms", "valid")
_SERVED = (EventKind.SPAWN, EventKind.AGGREGATE)


def _births(now, then, own, slot_of, life, names, told) -> None:
    """Newborns are named by their parent, its own turn and their place in that spawn."""
    uids = sorted(int(u) for n, u in enumerate(then["uid"]) if then["alive"][n] and int(u) not in life)
    places: Counter = Counter()
    parents = {int(u): int(p) for u, p in zip(then["uid"], then["parent_uid"], strict=True) if u >= 0}
    for uid in uids:
        p = own[slot_of[parents[uid]]]
        name = ("child", *p, places[p])
        places[p] += 1
        life[uid] = names.setdefault(name, len(names))
        told.lives.add(life[uid])
        told.acts_on.append((*p, life[uid], 0))


def _mail(t, now, then, e, acting, own, next_turn, parent, letters, told) -> None:
    """Who is written to, what is opened, and what depends on how far a reader was."""
    posted: dict[int, list[int]] = {}
    for s in own:
        if not (acting[s] and e["kind"][s] == EventKind.MESSAGE and e["valid"][s]):
            continue
        group, target = e["target_group"][s], int(e["target_uid"][s])
        for r in own:
            up = group == Group.PARENT and parent[s] == r
            down = parent[r] == s and (group == Group.CHILDREN or int(now["uid"][r]) == target)
            beside = group == Group.PEERS and r != s and parent[r] == parent[s] >= 0
            if not (up or down or beside):
                continue
            posted.setdefault(r, []).append(s)
            stays = then["alive"][r] and then["uid"][r] == now["uid"][r]
            if not up and stays and then["clock_ms"][r] > e["arrival_ms"][s]:  # late: at the reader's clock
                told.races["late", 0, *own[s], own[r][0]] = next_turn[r]
    for r, senders in posted.items():
        if now["mail"][r] > 0:  # an occupied place
            told.touched.append((t, own[r][0], next_turn[r]))
            continue
        letters[int(now["uid"][r])] = [own[s] for s in senders]
    for r in own:
        uid = int(now["uid"][r])
        gone = not then["alive"][r] or then["uid"][r] != uid
        if uid in letters and (gone or then["mail"][r] == 0):
            for sender in letters[uid] if not gone else ():
                told.acts_on.append((*sender, own[r][0], next_turn[r]))
                # Messages that meet arrive together: whom they met is a matter of ticks.
                told.races["met", len(letters[uid]), *sender, own[r][0]] = next_turn[r]
            del letters[uid]


def _rows(played: Played, b: int) -> Callable[[int, int, dict[int, int]], bytes]:
    """A function of tick and slot: all that the life there saw and did in its own turn, as bytes, without names."""
    ts, events = played.ts, played.after.events
    seen = ts.observation
    parts = [seen.self, seen.claims, seen.last_result, ts.legal.tools, ts.legal.whom, ts.legal.bounds]
    parts += [ts.lineage, ts.turn, ts.blocked, played.turns, events.channels["tool"]]
    named = ("kind", "decision", "tokens", "valid", "legal_count", "is_decision", "target_group", "claims_sent")
    named += ("refused", "latency_ms", "clock_ms", "arrival_ms", "cost_tokens", "result_code", "role")
    parts += [getattr(events, name) for name in named]
    mine = [np.asarray(part)[:, b] for part in parts]
    places = seen.parent_slot[:, b]
    tables = [seen.roster[:, b], seen.board[:, b]]
    roster_uid = seen.roster_uid[:, b]

    def row(t: int, n: int, life: dict[int, int]) -> bytes:
        told = b"".join(part[t, n].tobytes() for part in mine)
        for p in np.flatnonzero(places[t] == n):
            told += b"".join(table[t, p].tobytes() for table in tables)
            told += str([life.get(int(uid), -1) for uid in roster_uid[t, p]]).encode()
        return told

    return row


# Who is downstream ---------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """A pair held side by side."""

    wrong: list[tuple[int, int]]  # (life, own turn) not downstream and yet different
    same: int  # own turns not downstream, after the change, that were compared
    beside: int  # lives with such turns, other than the one that decided
    changed: int  # own turns downstream that differ
    spread: int  # lives other than the one that decided with own turns that differ
    by_schedule: int  # lives downstream only because of ticks
    touched: int  # lives touched by a limit
    example: tuple[int, int] = (-1, -1)  # (tick, slot) of an own turn counted in `same`


def compare(played: Played, b: int) -> Compared | None:
    """The b-th pair: the closure of the changed decision, and everything outside it; None where none was changed."""
    if played.slot[b] < 0:
        return None
    names: dict[tuple, int] = {}
    pair = [tell(played, b, names), tell(played, BRANCHES + b, names)]
    start = int(played.tick[b]), int(played.slot[b])
    decided, turn = next((me, k) for t, n, me, k in pair[0].turns if (t, n) == start)
    from_turn, by_schedule, touched = downstream(pair, decided, turn, start[0])
    is_down = lambda me, k: from_turn.get(me, NEVER) <= k  # noqa: E731
    found = Compared([], 0, 0, 0, 0, len(by_schedule), len(touched))
    beside, spread = set(), set()
    for t, n, me, k in pair[0].turns:
        rows = [told.rows.get((me, k)) for told in pair]
        if t < start[0] or None in rows:
            continue
        differs = rows[0] != rows[1]
        if is_down(me, k):
            found.changed += differs
            spread |= {me} if differs else set()
            continue
        later = all((me, k + 1) in told.rows for told in pair) and not is_down(me, k + 1)
        differs = differs or (later and pair[0].heard[me, k] != pair[1].heard[me, k])
        found.same += 1
        found.wrong += [(me, k)] if differs else []
        if me != decided:
            beside.add(me)
            found.example = t, n
    # Whoever is born in one of the two only has a parent that is downstream, or has not come so far in the other.
    for name, me in names.items():
        born = [(me, 0) in told.rows or me in told.lives for told in pair]
        if name[0] == "child" and not all(born):
            _, p, k, _ = name
            ok = is_down(p, k) or any((p, k) not in told.rows for told in pair)
            found.wrong += [] if ok else [(me, 0)]
    found.beside, found.spread = len(beside), len(spread - {decided})
    return found


def downstream(pair: list[Told], decided: int, turn: int, tick: int) -> tuple[dict[int, int], set[int], set[int]]:
    """From which own turn on each life is downstream; lives that are by ticks only; lives touched by a limit."""
    from_turn, by_schedule, touched = {decided: turn}, set(), set()
    for told in pair:
        for t, me, k in told.touched:
            if t >= tick:
                touched.add(me)
                from_turn[me] = min(k, from_turn.get(me, NEVER))
    _close(pair, from_turn)
    # What lives that are not downstream do to others may come at another time for these: ticks have shifted.
    for what in sorted(pair[0].races.keys() | pair[1].races.keys(), key=str):
        (_, _, cause, j, me), turns = what, [told.races[what] for told in pair if what in told.races]
        if (len(turns) == 1 or turns[0] != turns[1]) and from_turn.get(cause, NEVER) > j:
            k = min(turns)
            if k < from_turn.get(me, NEVER):
                by_schedule |= {me} if all((cause, j) in told.rows for told in pair) else set()
                from_turn[me] = k
                _close(pair, from_turn)
    return from_turn, by_schedule, touched


def _close(pair: list[Told], from_turn: dict[int, int]) -> None:
    """Follow causes to their effects until nothing is added."""
    grew = True
    while grew:
        grew = False
        for told in pair:
            for cause, j, me, k in told.acts_on:
                if from_turn.get(cause, NEVER) <= j and k < from_turn.get(me, NEVER):
                    from_turn[me], grew = k, True
