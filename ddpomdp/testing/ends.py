"""How lives and episodes end, and what the flags say."""

import numpy as np

from ddpomdp.enums import EventKind, LifeEnd, StopReason
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want


@check("ends.stop-reason")
def stop_reason(trial: Trial) -> int:
    """`stop_reason` is set if and only if the tick is the last."""
    for episode in trial.episodes:
        for ts in (episode.seen, episode.after):
            ok = (ts.stop_reason != StopReason.RUNNING) == ts.last
            episode.must(ok, "stop_reason", got=ts.stop_reason, last=ts.last)
        known = np.isin(episode.after.stop_reason, list(StopReason))
        episode.must(known, "stop_reason is one of StopReason", got=episode.after.stop_reason)
        want(not episode.seen.last.any(), f"episode {episode.index} went on after its last tick")
    return sum(episode.ended for episode in trial.episodes)


@check("ends.nobody-after")
def nobody_after(trial: Trial) -> int:
    """When the episode has ended nobody acts next, and nobody was born in its last tick."""
    ended = [episode for episode in trial.episodes if episode.ended]
    for episode in ended:
        last = episode.after.alive[-1]
        want(not last.any(), f"alive after the end of episode {episode.index}: slots {np.flatnonzero(last).tolist()}")
        was, uid = episode.seen.alive[-1], episode.after.uid[-1]
        born = np.flatnonzero(~was & (uid >= 0))
        want(not len(born), f"born in the last tick of episode {episode.index}: slots {born.tolist()}")
    return len(ended)


@check("ends.flags")
def flags(trial: Trial) -> int:
    """Terminated or truncated, never both, exactly where a life ends: `end_reason`, and no longer alive."""
    ends = 0
    for episode in trial.episodes:
        after, ended = episode.after, episode.ends
        both = after.terminated & after.truncated
        episode.must(~both, "both flags", terminated=after.terminated, truncated=after.truncated)
        flagged = after.terminated | after.truncated
        episode.must(flagged == ended, "a flag", flag=flagged, end_reason=after.events.end_reason)
        episode.must(~(flagged & after.alive), "flagged and alive", uid=after.uid)
        episode.must(~(flagged & ~episode.seen.alive), "flagged, but was not alive", uid=after.uid)
        over = np.where(after.last[:, None], after.events.end_reason != LifeEnd.ALIVE, True)
        episode.must(over | ~episode.seen.alive, "a life ends with the episode", end_reason=after.events.end_reason)
        early = after.events.end_reason == LifeEnd.EPISODE
        episode.must(~(early & ~after.last[:, None]), "ended with the episode, which went on", uid=after.uid)
        ends += int(ended.sum())
    return ends


def _at_end(trial: Trial, reason: StopReason):
    """(episode, terminated, truncated, is root, was alive and was not despawned) of each episode with that end."""
    for episode in trial.episodes:
        if episode.ended and episode.after.stop_reason[-1] == reason:
            stayed = episode.seen.alive[-1] & (episode.after.events.end_reason[-1] != LifeEnd.DESPAWNED)
            yield episode, episode.after.terminated[-1], episode.after.truncated[-1], episode.seen.uid[-1] == 0, stayed


@check("ends.despawned")
def despawned(trial: Trial) -> int:
    """A despawned life is terminated in that tick, by a despawn of its parent."""
    count = 0
    for episode in trial.episodes:
        events, seen = episode.after.events, episode.seen
        left = events.end_reason == LifeEnd.DESPAWNED
        episode.must(~left | episode.after.terminated, "a despawned life is terminated", uid=events.uid)
        same = (events.parent_uid[..., :, None] == seen.uid[..., None, :]) & seen.alive[..., None, :]
        by = (same & (events.kind == EventKind.DESPAWN)[..., None, :]).any(axis=-1)
        episode.must(~left | by, "a despawned life's parent called despawn", uid=events.uid, parent=events.parent_uid)
        counted, told = episode.sums(left), episode.after.info["deaths"]
        episode.must(counted == told, "deaths", counted=counted, info=told)
        count += int(left.sum())
    return count


@check("ends.stopped")
def stopped(trial: Trial) -> int:
    """`stop` of the root ends the episode in that tick, and the root is terminated."""
    for episode in trial.episodes:
        events = episode.after.events
        stops = ((events.kind == EventKind.STOP) & events.valid).any(axis=-1)
        right = (episode.after.stop_reason == StopReason.STOPPED) == stops
        episode.must(right, "stopped", got=episode.after.stop_reason, called=stops)
    count = 0
    for episode, terminated, _, root, _ in _at_end(trial, StopReason.STOPPED):
        want(terminated[root].all(), f"the root that stopped is not terminated in episode {episode.index}")
        count += 1
    return count


@check("ends.cut")
def cut(trial: Trial) -> int:
    """When the root stops, the others are cut: truncated."""
    count = 0
    for episode, _, truncated, root, stayed in _at_end(trial, StopReason.STOPPED):
        others = stayed & ~root
        slots = np.flatnonzero(others & ~truncated).tolist()
        want(not slots, f"not truncated when the root stopped: slots {slots} in episode {episode.index}")
        count += int(others.sum())
    return count


@check("ends.horizon")
def horizon(trial: Trial) -> int:
    """An episode that nothing else ends is truncated at max_ticks exactly, never longer."""
    for episode in trial.episodes:
        ticks = 1 + np.arange(len(episode.turns))
        at_end = episode.after.last[ticks == trial.spec.max_ticks]
        want(at_end.all(), f"episode {episode.index} goes on after {trial.spec.max_ticks} ticks")
        is_horizon = episode.after.stop_reason == StopReason.HORIZON
        early = is_horizon & (ticks != trial.spec.max_ticks)
        episode.must(~early, f"the horizon is at {trial.spec.max_ticks} ticks", ticks=ticks)
    count = 0
    for episode, terminated, truncated, _, stayed in _at_end(trial, StopReason.HORIZON):
        want(
            truncated[stayed].all() and not terminated[stayed].any(),
            f"at the horizon of episode {episode.index}: "
            f"terminated {terminated.tolist()}, truncated {truncated.tolist()}",
        )
        count += 1
    return count


@check("ends.budget")
def budget(trial: Trial) -> int:
    """The tick in which max_turns is reached is the last; its lives are terminated."""
    limit = trial.spec.max_turns
    for episode in trial.episodes:
        turns, reason = episode.after.info["turns"], episode.after.stop_reason
        if limit is not None:
            over = turns >= limit
            episode.must(~over | episode.after.last, f"max_turns is {limit}", turns=turns)
            stays = np.isin(reason, (StopReason.STOPPED, StopReason.BUDGET))
            episode.must(~over | stays, "the reason of a spent budget", got=reason, turns=turns)
    count = 0
    for episode, terminated, _, _, stayed in _at_end(trial, StopReason.BUDGET):
        want(
            terminated[stayed].all(), f"not terminated by the budget in episode {episode.index}: {terminated.tolist()}"
        )
        count += 1
    return count
