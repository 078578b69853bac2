"""Messages: none lost, none to the wrong life, nothing sent on in the tick in which it came."""

import numpy as np

from ddpomdp.enums import EventKind, Group
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want


@check("mail.conserved")
def conserved(trial: Trial) -> int:
    """Messages sent = delivered + in flight + undeliverable, at every tick, and none is taken back."""
    sent_in_all = 0
    for episode in trial.episodes:
        info = episode.after.info
        sent, there = info["mail_sent"], info["mail_delivered"] + info["mail_in_flight"] + info["mail_undeliverable"]
        parts = {name: info[f"mail_{name}"] for name in ("delivered", "in_flight", "undeliverable")}
        episode.must(sent == there, "messages sent", got=sent, **parts)
        for name in ("mail_sent", "mail_delivered", "mail_undeliverable"):
            before = np.concatenate([[episode.seen.info[name][0]], info[name][:-1]])
            episode.must(info[name] >= before, f"{name} never falls", before=before, after=info[name])
        episode.must(info["mail_in_flight"] >= 0, "messages in flight", got=info["mail_in_flight"])
        sent_in_all += int(sent[-1])
    return sent_in_all


@check("mail.counted")
def counted(trial: Trial) -> int:
    """`mail_sent` counts the receivers that the messages' events reached for."""
    messages = 0
    for episode in trial.episodes:
        events, alive = episode.after.events, episode.seen.alive
        pair = alive[..., None, :] & alive[..., :, None]
        is_child = (events.parent_uid[..., None, :] == events.uid[..., :, None]) & pair
        siblings = ((events.parent_uid[..., :, None] == events.parent_uid[..., None, :]) & pair).sum(axis=-1) - 1
        says, group = events.kind == EventKind.MESSAGE, events.target_group
        reached = np.select(
            [group == Group.PARENT, group == Group.CHILDREN, group == Group.PEERS, events.target_uid >= 0],
            [np.ones_like(group), is_child.sum(axis=-1), siblings, np.ones_like(group)],
            0,
        )
        total = episode.sums(np.where(says, reached, 0))
        told = episode.after.info["mail_sent"]
        episode.must(total == told, "mail_sent", counted=total, info=told)
        messages += int(says.sum())
    return messages


@check("mail.next-tick")
def next_tick(trial: Trial) -> int:
    """What comes in a tick cannot be sent on in it: nobody sends more claims than it knew before."""
    if "claims_known" not in trial.spec.self_features:
        return 0
    column, rows = trial.spec.self_features.index("claims_known"), trial.spec.num_subtasks
    sends = 0
    for episode in trial.episodes:
        events = episode.after.events
        known = np.rint(episode.seen.observation.self[..., column] * rows)
        episode.must(events.claims_sent <= known, "claims sent", got=events.claims_sent, known=known)
        sends += int((events.claims_sent > 0).sum())
    return sends


@check("mail.next-occupant")
def next_occupant(trial: Trial) -> int:
    """Mail to a life that left never reaches the next one in its slot."""
    reborn = 0
    for episode in trial.episodes:
        used = np.zeros(trial.spec.capacity, bool)
        for tick in range(len(episode.turns)):
            again = episode.born[tick] & used
            used |= episode.seen.alive[tick]
            mail = getattr(episode.states[tick + 1], "mail", None)
            if mail is None or not again.any():
                continue
            left = np.flatnonzero(again & (np.asarray(mail.count) > 0))
            want(not len(left), f"newborns have mail in slots {left.tolist()} in episode {episode.index}, tick {tick}")
            reborn += int(again.sum())
    return reborn
