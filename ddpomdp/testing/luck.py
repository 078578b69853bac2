"""Same keys, same bits, to the end; task and luck apart; noise by lineage and own turn number."""

import jax
import numpy as np

from ddpomdp.luck import noise_keys
from ddpomdp.pytree import replace
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want
from ddpomdp.testing.trees import differing

RESETS = 16


@check("luck.repeats")
def repeats(trial: Trial) -> int:
    """The same keys give the same turns and the same bits, at every tick to the end."""
    compared = 0
    for episode in [*trial.episodes[:3], trial.long]:
        state, ts = trial.reset(episode.key, episode.luck)
        for tick in range(len(episode.turns)):
            turns = trial.choose(episode.index, episode.luck, ts)
            where = f"in episode {episode.index}, tick {tick}"
            want((turns == episode.turns[tick]).all(), f"sample_turns gave other turns the second time {where}")
            state, ts = trial.step(episode.luck, state, turns)
            odd = differing(ts, jax.tree.map(lambda x: x[tick], episode.after))  # noqa: B023
            want(not odd, f"the second time {', '.join(odd[:5])} differed {where}")
            compared += 1
        odd = differing(state, episode.states[-1])
        want(not odd, f"the second time the last state differed: {', '.join(odd[:5])} in episode {episode.index}")
    return compared


@check("luck.keys-differ")
def keys_differ(trial: Trial) -> int:
    """Other keys draw other tasks, other luck goes another way with the same turns."""
    key, luck = trial.keys(0)
    states = [trial.reset(jax.random.fold_in(key, i), luck)[0] for i in range(RESETS)]
    tasks = {tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(state)) for state in states}
    want(len(tasks) > 1, f"{RESETS} keys drew the same task")
    episode, changed = trial.long, 0
    for i in range(4):
        other = jax.random.fold_in(episode.luck, i)
        state, _ = trial.reset(episode.key, other)
        for turns in episode.turns:
            state, _ = trial.step(other, state, turns)
        lives = lambda state: getattr(state, "lives", state)  # noqa: E731
        changed += bool(differing(lives(state), lives(episode.states[-1])))
    want(changed > 0, "4 other values of luck left every life as it was")
    return len(tasks) + changed


@check("luck.group-shares-task")
def group_shares_task(trial: Trial) -> int:
    """What the key draws at reset does not depend on luck, and luck draws something else."""
    key, luck = trial.keys(0)
    task = lambda state: getattr(state, "task", state)  # noqa: E731
    leaves = lambda key, luck: [np.asarray(x).tobytes() for x in jax.tree.leaves(task(trial.reset(key, luck)[0]))]  # noqa: E731
    base = leaves(key, luck)
    by_key, by_luck = np.zeros(len(base), bool), np.zeros(len(base), bool)
    for i in range(RESETS):
        by_key |= [a != b for a, b in zip(leaves(jax.random.fold_in(key, i), luck), base, strict=True)]
        by_luck |= [a != b for a, b in zip(leaves(key, jax.random.fold_in(luck, i)), base, strict=True)]
    if not by_key.any():
        return 0
    want((by_key & ~by_luck).any(), "every part of the task that the key draws changes with luck too")
    return int((by_key & ~by_luck).sum())


@check("luck.noise-by-lineage")
def noise_by_lineage(trial: Trial) -> int:
    """A life's sampled turn depends on its lineage, own turn and legality, not on its slot."""
    compared = 0
    rng = np.random.default_rng(trial.seed)
    for episode, tick in trial.places(9):
        ts = jax.tree.map(lambda x: x[tick], episode.seen)  # noqa: B023
        order = rng.permutation(trial.spec.capacity)
        moved = replace(
            ts,
            **{name: getattr(ts, name)[order] for name in ("uid", "lineage", "turn", "alive", "blocked")},
            legal=jax.tree.map(lambda x: x[order], ts.legal),  # noqa: B023
        )
        key = jax.random.fold_in(episode.luck, 5)
        turns, there = (np.asarray(trial.sample_turns(key, one)) for one in (ts, moved))
        where = f"in episode {episode.index}, tick {tick}"
        ok = ((turns[order] == there).all(axis=-1) | ~ts.alive[order]).all()
        want(ok, f"sampled turns changed with the slots {where}: got {there.tolist()}, not {turns[order].tolist()}")
        words = np.asarray(jax.random.key_data(noise_keys(key, ts)))[ts.alive]
        want(len(np.unique(words, axis=0)) == len(words), f"two lives share their noise key {where}")
        compared += int(ts.alive.sum())
    return compared


@check("luck.lineages")
def lineages(trial: Trial) -> int:
    """A life keeps its lineage, no two share one, and its turn number counts its own turns."""
    births = 0
    for episode in trial.episodes:
        seen, after = episode.seen, episode.after
        stays = seen.alive & after.alive
        kept = (seen.lineage == after.lineage).all(axis=-1)
        episode.must(~stays | kept, "a life keeps its lineage", before=seen.lineage, after=after.lineage)
        lives = {tuple(seen.lineage[0, slot]): int(seen.uid[0, slot]) for slot in np.flatnonzero(seen.alive[0])}
        for tick, slot in zip(*np.nonzero(episode.born), strict=True):
            name, uid = tuple(after.lineage[tick, slot]), int(after.uid[tick, slot])
            said = (
                f"lineage {name} of uid {uid} is that of uid {lives.get(name)} in episode {episode.index}, tick {tick}"
            )
            want(name not in lives, said)
            lives[name] = uid
            births += 1
        steps = after.turn - seen.turn
        acted = np.where(seen.blocked, 0, 1)
        returned = seen.legal.tools == 1  # idle ones may only wait, and such ticks are not turns
        fits = (steps == acted) | (returned & (steps == 0))
        episode.must(~stays | fits, "turn numbers count own turns", before=seen.turn, after=after.turn)
        decided = after.events.is_decision
        episode.must(~(stays & decided) | (steps == 1), "a decision is a turn", steps=steps)
        episode.must(~episode.born | (after.turn == 0), "a newborn has had no turn", turn=after.turn)
    return births
