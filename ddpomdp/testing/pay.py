"""What lives are paid: channels, their weights, and what they add up to."""

import numpy as np

from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial, want


@check("pay.weights")
def weights(trial: Trial) -> int:
    """Reward is weights . channels, and the events repeat the channels."""
    paid = 0
    rates = {name: float(value) for name, value in trial.env.params.weights.items()}
    for episode in trial.episodes:
        total = sum(rates[name] * value.astype(np.float64) for name, value in episode.after.channels.items())
        close = np.isclose(episode.after.reward, total, rtol=1e-5, atol=1e-6)
        episode.must(close, "reward", got=episode.after.reward, expected=total)
        for name, value in episode.after.channels.items():
            same = value == episode.after.events.channels[name]
            episode.must(same, f"channel {name}", got=value, event=episode.after.events.channels[name])
        paid += int(sum((value != 0).sum() for value in episode.after.channels.values()))
    return paid


@check("pay.individual")
def individual(trial: Trial) -> int:
    """`individual`, with what is due to lives after their end, sums to the quality of the answer."""
    gained = 0
    for episode in trial.episodes:
        state = episode.states[-1]
        late = float(np.asarray(getattr(state, "late", 0.0), np.float64).sum())
        total = float(episode.after.channels["individual"].astype(np.float64).sum()) + late
        quality = float(episode.after.info["quality"][-1])
        said = f"individual sums to {total:.6f}, of it {late:.6f} late; quality is {quality:.6f}"
        want(abs(total - quality) < 1e-4, f"{said}, in episode {episode.index}")
        gained += quality > 0
    return gained


@check("pay.team")
def team(trial: Trial) -> int:
    """`team` is paid in the last tick only, the same to all who lived: quality less the prices."""
    params = trial.env.params
    count = 0
    for episode in trial.episodes:
        value, info = episode.after.channels["team"], episode.after.info
        early = (value != 0) & ~episode.after.last[:, None]
        episode.must(~early, "team before the end", got=value)
        if not episode.ended:
            continue
        there = episode.seen.alive[-1]
        due = info["quality"][-1] - float(params.price_token) * info["tokens"][-1]
        due = due - float(params.price_second) * info["wall_s"][-1]
        ok = np.isclose(value[-1][there], due, rtol=1e-4, atol=1e-5).all()
        want(ok, f"team at the end of episode {episode.index}: got {value[-1][there].tolist()}, due {due:.6f}")
        count += 1
    return count


@check("pay.nobody")
def nobody(trial: Trial) -> int:
    """Slots without a life before the turn are paid nothing."""
    for episode in trial.episodes:
        none = ~episode.seen.alive
        for name, value in (("reward", episode.after.reward), *episode.after.channels.items()):
            episode.must(~none | (value == 0), f"{name} of an empty slot", got=value)
    return sum(int((~episode.seen.alive).sum()) for episode in trial.episodes)
