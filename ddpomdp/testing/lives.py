"""Slots and lives: one life per slot and tick, names that never return, births and owners."""

import numpy as np

from ddpomdp.enums import EventKind, LifeEnd
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Episode, Trial, want


def _births(trial: Trial) -> int:
    return sum(int(episode.born.sum()) for episode in trial.episodes)


def _slot_of_parent(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """(slot of each life's parent int[T,N], whether the parent was alive bool[T,N]), before the turn."""
    parent, seen = episode.after.events.parent_uid, episode.seen
    same = (parent[..., :, None] == seen.uid[..., None, :]) & seen.alive[..., None, :]
    return same.argmax(axis=-1), same.any(axis=-1)


@check("lives.root")
def root(trial: Trial) -> int:
    """The life of uid 0 is the root: first role, no parent, alive until the end; a crew at the start is its own."""
    for episode in trial.episodes:
        seen, events = episode.seen, episode.after.events
        is_root = seen.alive & (seen.uid == 0)
        episode.must(is_root.sum(axis=-1) == 1, "one root is alive", uids=seen.uid)
        crew = seen.alive[0] & ~is_root[0]
        parents = events.parent_uid[0][crew]
        allowed = len(trial.spec.roles) - 1 if dict(trial.env.harness.topology).get("crew") else 0
        want(len(parents) == allowed, f"episode {episode.index} starts with {1 + len(parents)} lives")
        want(bool((parents == 0).all()), f"episode {episode.index} has a crew of parents {parents.tolist()}, not 0")
        episode.must(~is_root | (events.role == 0), "the root has the first role", role=events.role)
        episode.must(~is_root | (events.parent_uid == -1), "the root has no parent", parent=events.parent_uid)
    return sum(len(episode.turns) for episode in trial.episodes)


@check("lives.one-per-slot")
def one_per_slot(trial: Trial) -> int:
    """A slot's row speaks of one life: uids are -1 exactly where empty, and no two slots share one."""
    for episode in trial.episodes:
        seen, after = episode.seen, episode.after
        episode.must((seen.uid >= 0) >= seen.alive, "the living have a uid", uid=seen.uid, alive=seen.alive)
        named = seen.alive | episode.born
        episode.must((after.uid >= 0) == named, "rows of the living and newborn have a uid, others -1", uid=after.uid)
        stays = seen.alive
        episode.must(~stays | (after.uid == seen.uid), "a life keeps its slot", before=seen.uid, after=after.uid)
        alone = np.sort(np.where(after.uid >= 0, after.uid, -1 - np.arange(after.uid.shape[-1])), axis=-1)
        episode.must(np.diff(alone, axis=-1) != 0, "no uid in two slots", uids=after.uid)
    return _births(trial)


@check("lives.events")
def events_of_the_living(trial: Trial) -> int:
    """Events speak of exactly those who were alive before the turn, other rows are empty."""
    for episode in trial.episodes:
        seen, events = episode.seen, episode.after.events
        expected = np.where(seen.alive, seen.uid, -1)
        episode.must(events.uid == expected, "an event's uid", got=events.uid, alive=expected)
        none = ~seen.alive
        quiet = ~events.valid & ~events.is_decision & (events.kind == 0) & (events.cost_tokens == 0).all(axis=-1)
        episode.must(~none | quiet, "an empty slot's event is empty", kind=events.kind, tokens=events.cost_tokens)
        episode.must(events.slot == np.arange(none.shape[-1]), "an event's slot", slot=events.slot)
        ticks = 1 + np.arange(len(none))
        episode.must(events.tick == ticks[:, None], "events count ticks from 1", tick=events.tick)
    return sum(int(episode.seen.alive.sum()) for episode in trial.episodes)


@check("lives.newborn")
def newborn(trial: Trial) -> int:
    """A newborn is observed in its birth tick with reward 0 and flags False, and acts in the next."""
    strict = bool(getattr(trial.env, "options", {}).get("strict_order"))  # there only the smallest clock acts
    for episode in trial.episodes:
        born, after = episode.born, episode.after
        paid = after.reward != 0
        for value in after.channels.values():
            paid = paid | (value != 0)
        episode.must(~(born & paid), "a newborn is paid 0", reward=after.reward, uid=after.uid)
        flags = after.terminated | after.truncated
        episode.must(~(born & flags), "a newborn has no flag", terminated=after.terminated, truncated=after.truncated)
        seen = (after.observation.self != 0).any(axis=-1)
        episode.must(~born | seen, "a newborn is observed", uid=after.uid)
        held = after.blocked & (not strict)
        episode.must(~(born & held), "a newborn is not blocked", uid=after.uid)
        acts = episode.seen.uid[1:] == after.events.uid[1:]
        can = after.events.legal_count[1:] > 0
        episode.must(~born[:-1] | (acts & can), "a newborn acts in the next tick", uid=after.events.uid[1:])
    return _births(trial)


@check("lives.freed-slots")
def freed_slots(trial: Trial) -> int:
    """A slot freed in a tick is filled from the next tick on, not in the same."""
    refilled = 0
    for episode in trial.episodes:
        ends, after = episode.ends & episode.seen.alive, episode.after
        episode.must(~(ends & after.alive), "a slot whose life ended is empty", uid=after.uid, end=ends)
        gone = episode.seen.alive & ~after.alive
        episode.must(gone == ends, "whoever is gone has ended, in its event", uid=after.events.uid)
        before = np.zeros(ends.shape[-1], bool)
        for tick in range(len(ends)):
            refilled += int((before & episode.born[tick]).sum())
            before |= gone[tick]
    return refilled


@check("lives.uids")
def uids(trial: Trial) -> int:
    """Uids count lives from the root's 0, the crew's first: a newborn's is larger than any before it, without gaps."""
    for episode in trial.episodes:
        first = sorted(episode.seen.uid[0][episode.seen.alive[0]].tolist())
        want(first == list(range(len(first))), f"episode {episode.index} starts with uids {first}")
        highest = first[-1]
        for tick in np.flatnonzero(episode.born.any(axis=-1)):
            got = sorted(episode.after.uid[tick][episode.born[tick]].tolist())
            expected = list(range(highest + 1, highest + 1 + len(got)))
            want(got == expected, f"newborn uids are {got}, not {expected}, in episode {episode.index}, tick {tick}")
            highest += len(got)
        births = len(first) - 1 + episode.sums(episode.born)
        episode.must(
            births == episode.after.info["births"], "births", counted=births, info=episode.after.info["births"]
        )
    return _births(trial)


@check("lives.never-return")
def never_return(trial: Trial) -> int:
    """A life that has ended is never seen again."""
    ended = 0
    for episode in trial.episodes:
        gone: set[int] = set()
        for tick, after in enumerate(episode.after.uid):
            back = gone & set(after[after >= 0].tolist())
            want(not back, f"uid {min(back, default=0)} is back in episode {episode.index}, tick {tick}")
            gone |= set(after[episode.ends[tick]].tolist())
        ended += len(gone) if not episode.ended else len(gone - set(episode.after.uid[-1].tolist()))
    return ended


@check("lives.owners")
def owners(trial: Trial) -> int:
    """Nobody is ownerless: a parent is alive; when it leaves, the nearest live ancestor adopts."""
    children = 0
    for episode in trial.episodes:
        seen, events = episode.seen, episode.after.events
        slot, owned = _slot_of_parent(episode)
        child = seen.alive & (seen.uid != 0)
        episode.must(~child | owned, "a child's parent is alive", uid=events.uid, parent=events.parent_uid)
        leads = np.take_along_axis(events.role, slot, axis=-1) == 0
        episode.must(~child | leads, "only leads have children", uid=events.uid, parent=events.parent_uid)
        leaves = events.end_reason == LifeEnd.DESPAWNED
        for tick in range(len(slot) - 1):
            for n in np.flatnonzero(child[tick] & child[tick + 1]):
                heir = n
                while True:  # up from the parent, past those that left in this tick
                    heir = slot[tick, heir]
                    if not leaves[tick, heir]:
                        break
                got, expected = events.parent_uid[tick + 1, n], seen.uid[tick, heir]
                said = f"uid {seen.uid[tick, n]} has parent {got}, not {expected}"
                want(got == expected, f"{said}, in episode {episode.index}, tick {tick + 1}")
        children += int(child.sum())
    return children


@check("lives.limits")
def limits(trial: Trial) -> int:
    """Never more lives at once than slots, nor more of a role in an episode than max_lives."""
    most, spec = 0, trial.spec
    for episode in trial.episodes:
        alive = episode.seen.alive.sum(axis=-1)
        episode.must(alive <= spec.capacity, "lives at once", alive=alive)
        said = episode.after.info["alive"]
        episode.must(
            said == episode.after.alive.sum(axis=-1), "info alive", got=said, counted=episode.after.alive.sum(axis=-1)
        )
        events = episode.after.events
        there = events.uid >= 0
        lives = np.unique(np.stack([events.uid[there], events.role[there]]), axis=1)
        want(len(np.unique(lives[0])) == lives.shape[1], f"a life changed its role in episode {episode.index}")
        for index, (role, limit) in enumerate(spec.max_lives.items()):
            count = int((lives[1] == index).sum())
            want(count <= limit, f"{count} lives of role {role} in episode {episode.index}, max_lives {limit}")
        most += int((alive == spec.capacity).sum())
    return most


@check("lives.returned")
def returned(trial: Trial) -> int:
    """A return leaves its life in its slot, idle: it may only wait until its parent hands it work."""
    back = 0
    for episode in trial.episodes:
        events, after = episode.after.events, episode.after
        came = (events.kind == EventKind.RETURN) & ~episode.ends
        episode.must(~came | after.alive, "who returned is still there", uid=events.uid)
        episode.must(~came | (after.legal.tools == 1), "who returned may only wait", tools=after.legal.tools)
        parent, _ = _slot_of_parent(episode)
        handed = np.take_along_axis(events.kind, parent, axis=-1) == EventKind.DELEGATE
        idle = np.zeros(came.shape[-1], bool)
        for tick in range(len(came)):
            free = events.legal_count[tick] > 1
            odd = np.flatnonzero(idle & free & episode.seen.alive[tick])
            said = f"uid {events.uid[tick, odd[:1]].tolist()} was idle and acts without having been handed work"
            want(not len(odd), f"{said}, in episode {episode.index}, tick {tick}")
            idle = ((idle & ~handed[tick]) | came[tick]) & after.alive[tick] & ~episode.born[tick]
        back += int(came.sum())
    return back
