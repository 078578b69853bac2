"""What may be called: never nothing, the same in every spelling; what may not be called waits and is counted."""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import Decision, EventKind
from ddpomdp.harness import MENU_LIMIT, WAIT
from ddpomdp.state import State
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want
from ddpomdp.testing.trees import differing, numpy

PLACES = 9
LOW, HIGH = -(2**31), 2**31 - 1
BY_PARENT = ("parent_slot", "roster", "roster_uid", "board")  # parts of an observation without the slot axis


@check("legality.wait")
def wait(trial: Trial) -> int:
    """`wait` is always legal, for empty slots too."""
    for episode in trial.episodes:
        for ts in (episode.seen, episode.after):
            episode.must(ts.legal.tools & 1 == 1, "wait is legal", tools=ts.legal.tools, alive=ts.alive)
    return sum(episode.after.alive.size for episode in trial.episodes)


@check("legality.sampled")
def sampled(trial: Trial) -> int:
    """Sampled turns are legal: valid in their events and never counted as illegal."""
    for episode in trial.episodes:
        valid, alive = episode.after.events.valid, episode.seen.alive
        episode.must(valid == alive, "a sampled turn is valid", valid=valid, turn=episode.turns)
        episode.must(episode.after.info["illegal"] == 0, "none is counted", illegal=episode.after.info["illegal"])
    return sum(int(episode.seen.alive.sum()) for episode in trial.episodes)


@lru_cache(maxsize=8)
def _masks(harness: Any, legal_tokens: Any) -> Callable[[Any], tuple[jax.Array, jax.Array, jax.Array]]:
    """A compiled function of `legal`: the legal calls bool[N, K] of the menu by tokens, by its mask and by the rule."""
    menu = harness.menu

    def masks(legal: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        n = legal.tools.shape[0]

        def of_call(call: jax.Array) -> tuple[jax.Array, jax.Array]:
            turns = jnp.broadcast_to(call, (n, menu.shape[1]))
            by_token = jnp.ones(n, bool)
            for position in range(menu.shape[1]):
                by_token = by_token & legal_tokens(legal, turns, position)[:, call[position]]
            return by_token, harness.is_legal(legal, turns)

        by_token, by_rule = jax.vmap(of_call, out_axes=1)(jnp.asarray(menu))
        return by_token, harness.menu_mask(legal), by_rule

    return jax.jit(masks)


@check("legality.spellings")
def spellings(trial: Trial) -> int:
    """`legal_tokens`, the menu's mask, sample_turns and legal_count agree on what is legal."""
    checked = 0
    for episode, tick in trial.places(2 * PLACES):
        ts = jax.tree.map(lambda x: x[tick], episode.seen)  # noqa: B023
        turns, where = episode.turns[tick], f"in episode {episode.index}, tick {tick}"
        for position in range(turns.shape[1]):
            mask = np.asarray(trial.env.legal_tokens(ts.legal, turns, position))
            want(mask.shape == (trial.spec.capacity, trial.spec.vocabulary), f"legal_tokens: shape {mask.shape}")
            want(mask.any(axis=-1).all(), f"legal_tokens is empty at position {position} {where}")
            hit = mask[np.arange(len(mask)), turns[:, position]] | ~ts.alive
            want(hit.all(), f"legal_tokens forbids sampled {turns[~hit].tolist()} at position {position} {where}")
        if trial.spec.menu_size <= MENU_LIMIT:
            menu, masks = trial.env.harness.menu, _masks(trial.env.harness, trial.env.legal_tokens)
            by_token, by_mask, by_rule = (np.asarray(mask) & ts.alive[:, None] for mask in masks(ts.legal))
            for name, other in (("the menu's mask", by_mask), ("is_legal", by_rule)):
                odd = np.argwhere(by_token != other)
                said = [(int(slot), menu[call].tolist()) for slot, call in odd[:3]]
                want(not len(odd), f"legal_tokens and {name} disagree on (slot, call) {said} {where}")
            count = jax.tree.map(lambda x: x[tick], episode.after).events.legal_count  # noqa: B023
            ok = (by_mask.sum(axis=-1) == count) | ~ts.alive
            want(ok.all(), f"legal_count: got {count.tolist()}, the menu has {by_mask.sum(axis=-1).tolist()} {where}")
        checked += 1
    return checked


@check("legality.json")
def round_trips(trial: Trial) -> int:
    """Tokens, menu index and JSON are three spellings of a call: round trips are exact."""
    harness = trial.env.harness
    roster = [f"child_{row}" for row in range(trial.spec.roster)]
    if trial.spec.menu_size <= MENU_LIMIT:
        calls = harness.menu
        want(len(calls) == harness.menu_size, f"the menu has {len(calls)} calls, menu_size says {harness.menu_size}")
        for index, call in enumerate(calls):
            found = harness.menu_index[tuple(call.tolist())]
            want(found == index, f"menu_index gives {found} for call {index}, {call.tolist()}")
    else:
        calls = np.unique(np.concatenate([e.turns[e.seen.alive] for e in trial.episodes]), axis=0)
    for call in calls:
        text = json.dumps(harness.to_json(call, roster))
        back = np.asarray(harness.from_json(json.loads(text), roster))
        want((back == call).all(), f"{call.tolist()} became {text} became {back.tolist()}")
    return len(calls)


@check("legality.refuses")
def refuses(trial: Trial) -> int:
    """Outside compiled code turns of a wrong shape or dtype are a ValueError that names them."""
    episode = trial.episodes[0]
    good, bad = episode.turns[0], 0
    for turns in (good[:-1], good[:, :-1], good[0], good.astype(np.float32), np.full_like(good, np.nan, float)):
        said = f"turns {turns.dtype}{list(turns.shape)}"
        try:
            trial.env.step(episode.luck, episode.states[0], turns)
        except ValueError as error:
            want("turns" in str(error), f"{said}: the message does not name the turns: {error}")
            bad += 1
        else:
            want(False, f"{said} were taken")
    return bad


@check("legality.forced")
def forced(trial: Trial) -> int:
    """Forced waits are no decisions and cost nothing; a decision is a turn with a choice."""
    waits = 0
    for episode in trial.episodes:
        seen, events = episode.seen, episode.after.events
        quiet = seen.alive & seen.blocked
        only_wait = seen.legal.tools == 1
        episode.must(~quiet | only_wait, "a blocked life may only wait", tools=seen.legal.tools)
        idle = ~quiet | (~events.is_decision & (events.kind == EventKind.WAIT) & (events.latency_ms == 0))
        episode.must(idle, "a forced wait is no decision and takes no time", decision=events.is_decision)
        free = (events.cost_tokens == 0).all(axis=-1)
        episode.must(~quiet | free, "a forced wait costs nothing", tokens=events.cost_tokens)
        chooses = seen.alive & ~seen.blocked & (events.legal_count > 1)
        episode.must(events.is_decision == chooses, "is_decision", got=events.is_decision, calls=events.legal_count)
        named = events.is_decision | (events.decision == Decision.NONE)
        episode.must(named, "what is no decision has decision NONE", decision=events.decision)
        waits += int(quiet.sum())
    return waits


@check("legality.illegal")
def illegal(trial: Trial) -> int:
    """An illegal call of the grammar is a counted wait that touches nobody else."""
    vocabulary = trial.spec.vocabulary
    return _rejected(trial, lambda rng, width: (int(rng.integers(width)), int(rng.integers(vocabulary))))


@check("legality.out-of-range")
def out_of_range(trial: Trial) -> int:
    """Tokens far out of range, or just, are a counted wait that touches nobody else."""
    values = (-1, LOW, HIGH, trial.spec.vocabulary, -trial.spec.capacity, 31, 32, 33, 64)
    return _rejected(trial, lambda rng, width: (int(rng.integers(width)), int(rng.choice(values))))


def _rejected(trial: Trial, change: Callable[[np.random.Generator, int], tuple[int, int]]) -> int:
    """Change one position of one life's turn so that it is illegal: against that life waiting, nothing else differs."""
    rng, tried = np.random.default_rng(trial.seed), 0
    frozen = [trial.spec.roles.index(role) for role in getattr(trial.env, "options", {}).get("frozen_roles", ())]
    for episode, tick in trial.places(2 * PLACES):
        ts = jax.tree.map(lambda x: x[tick], episode.seen)  # noqa: B023
        role = ts.observation.self[:, : len(trial.spec.roles)].argmax(axis=-1)  # what the frozen say is replaced
        acting = np.flatnonzero(ts.alive & ~ts.blocked & (ts.legal.tools != 1) & ~np.isin(role, frozen))
        if not len(acting):
            continue
        waits = episode.turns[tick].copy()
        who = int(rng.choice(acting))
        waits[who] = WAIT
        state, expected = trial.step(episode.luck, episode.states[tick], waits)
        expected = numpy(expected)
        for _ in range(4):
            turns = episode.turns[tick].copy()
            position, token = change(rng, turns.shape[1])
            turns[who, position] = token
            if np.asarray(trial.is_legal(ts.legal, turns))[who]:
                continue
            other, shown = trial.step(episode.luck, episode.states[tick], turns)
            where = f"slot {who} called {turns[who].tolist()} in episode {episode.index}, tick {tick}"
            _waited(who, numpy(shown), expected, int(episode.seen.info["illegal"][tick]), turns[who], where)
            _moved_nothing(other, state, where)
            tried += 1
    return tried


def _waited(who: int, got: Any, expected: Any, counted: int, turn: np.ndarray, where: str) -> None:
    """`Broken` unless `got` is `expected` but for what slot `who` is told, and the counter."""
    events = got.events
    said = f"valid {events.valid[who]}, kind {events.kind[who]}, tokens {events.tokens[who].tolist()}"
    want(
        not events.valid[who] and events.kind[who] == EventKind.WAIT,
        f"it was not made an invalid wait ({said}): {where}",
    )
    want((events.tokens[who] == turn).all(), f"its event does not show what was asked ({said}): {where}")
    want(events.latency_ms[who] == 0 and not events.cost_tokens[who].any(), f"it cost something: {where}")
    want(got.info["illegal"] == counted + 1, f"illegal is {got.info['illegal']} after {counted}: {where}")
    kept = ("alive", "uid", "lineage", "turn", "blocked", "terminated", "truncated", "legal")
    own = {name: differing(getattr(got, name), getattr(expected, name)) for name in kept}
    want(
        not any(own.values()), f"other than by waiting: {', '.join(name for name, odd in own.items() if odd)}: {where}"
    )
    odd = differing(_without(got, who), _without(expected, who))
    want(not odd, f"it touched {', '.join(odd[:5])} of others: {where}")


def _without(ts: Any, who: int) -> Any:
    """A TimeStep without the row of a slot, and without the counter of illegal turns."""
    drop = lambda tree: jax.tree.map(lambda x: np.delete(x, who, axis=0), tree)  # noqa: E731
    whole = ("last", "stop_reason", "info", "observation")
    rest = {name: drop(getattr(ts, name)) for name in type(ts).__dataclass_fields__ if name not in whole}
    eyes = vars(ts.observation)
    seen = {name: value if name in BY_PARENT else drop(value) for name, value in eyes.items()}
    info = {name: value for name, value in ts.info.items() if name != "illegal"}
    return {"lives": rest, "observation": seen, "info": info, "last": ts.last, "stop_reason": ts.stop_reason}


def _moved_nothing(state: Any, expected: Any, where: str) -> None:
    """Of the hidden state only what the caller is told, and the counter, may differ."""
    if isinstance(state, State):
        told = {".lives.last_code", ".lives.last_value", ".totals.illegal"}
        odd = set(differing(state, expected)) - told
        want(not odd, f"it changed the state: {', '.join(sorted(odd)[:5])}: {where}")


@check("legality.empty-slots")
def empty_slots(trial: Trial) -> int:
    """Whatever turns say for empty slots changes nothing."""
    rng, tried = np.random.default_rng(trial.seed), 0
    for episode, tick in trial.places(PLACES):
        empty = ~episode.seen.alive[tick]
        if not empty.any():
            continue
        turns = episode.turns[tick].copy()
        turns[empty] = rng.choice((-1, 1, 3, 7, LOW, HIGH), turns[empty].shape)
        state, ts = trial.step(episode.luck, episode.states[tick], turns)
        odd = differing(ts, jax.tree.map(lambda x: x[tick], episode.after))  # noqa: B023
        odd = odd or differing(state, episode.states[tick + 1])
        want(not odd, f"they changed {', '.join(odd[:5])} in episode {episode.index}, tick {tick}")
        tried += int(empty.sum())
    return tried
