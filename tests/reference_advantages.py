"""The operators of advantages.py and losses.py again, as plain loops in double precision: what the tests compare with.

Nothing here is shared with the package. A token sample is really written down once per token.
"""

import math

SCOPE_COLUMNS = {
    "group": ("group",),
    "group_agent": ("group", "agent"),
    "group_role": ("group", "role"),
    "agent": ("agent",),
    "batch": (),
}


def gather(live, key):
    """Lists of entries by key, in order of appearance."""
    cells = {}
    for e in live:
        cells.setdefault(key(e), []).append(e)
    return cells


def samples_of(cell, case, sample):
    """[(value, share, trajectory)] of a cell, and the score of each of its entries."""
    value, weight, tokens = case["value"], case["weight"], case["tokens"]
    name = {e: (int(case["group"][e]), int(case["trajectory"][e])) for e in cell}
    if sample == "trajectory":
        samples, score = [], {}
        for trajectory, calls in gather(cell, name.__getitem__).items():
            total = sum(float(weight[e]) for e in calls)
            mean = sum(float(weight[e]) * float(value[e]) for e in calls) / total
            samples.append((mean, 1.0, trajectory))
            score.update(dict.fromkeys(calls, mean))
        return samples, score
    times = {e: int(tokens[e]) if sample == "token" else 1 for e in cell}
    samples = [(float(value[e]), float(weight[e]), name[e]) for e in cell for _ in range(times[e])]
    return samples, {e: float(value[e]) for e in cell}


def mean_of(samples):
    return sum(share * x for x, share, _ in samples) / sum(share for _, share, _ in samples)


def std_of(samples, ddof):
    middle, n = mean_of(samples), len(samples)
    square = sum(share * (x - middle) ** 2 for x, share, _ in samples) / sum(share for _, share, _ in samples)
    return math.sqrt(square * n / (n - ddof))


def kind_of(samples):
    """'singleton', 'flat' or 'spread'."""
    if len({trajectory for _, _, trajectory in samples}) < 2:
        return "singleton"
    values = [x for x, _, _ in samples]
    return "flat" if max(values) - min(values) <= 1e-6 * max(1.0, abs(max(values))) else "spread"


def normalise(case, *, sample, center, center_scope, scale, scale_scope, ddof, eps):
    """(advantages, stats) of one batch; `case` holds value, trajectory, group, agent, role, tokens, weight and mask."""
    size = len(case["value"])
    live = [e for e in range(size) if case["mask"][e] and case["weight"][e] > 0]
    if sample == "token":
        live = [e for e in live if case["tokens"][e] >= 1]

    def look(scope):
        columns = SCOPE_COLUMNS[scope]
        return gather(live, lambda e: tuple(int(case[column][e]) for column in columns))

    advantage = [0.0] * size
    silent = {}  # entry -> why it gets 0
    looked = {scope for scope, how in ((center_scope, center), (scale_scope, scale)) if how != "none"}
    kinds = []
    for scope in looked:
        for cell in look(scope).values():
            kind = kind_of(samples_of(cell, case, sample)[0])
            kinds.append(kind)
            for e in cell:
                if kind == "singleton" or (kind == "flat" and silent.get(e) != "singleton"):
                    silent[e] = kind
    count = 0
    for cell in look(center_scope).values():
        samples, score = samples_of(cell, case, sample)
        count += len(samples)
        for e in cell:
            if e in silent:
                continue
            mine = (int(case["group"][e]), int(case["trajectory"][e]))
            others = [s for s in samples if s[2] != mine]
            centre = {"mean": lambda s=samples: mean_of(s), "leave_one_out": lambda o=others: mean_of(o)}
            advantage[e] = score[e] - centre.get(center, lambda: 0.0)()
    if scale == "std":
        for cell in look(scale_scope).values():
            if loud := [e for e in cell if e not in silent]:
                std = std_of(samples_of(cell, case, sample)[0], ddof)
                for e in loud:
                    advantage[e] /= std + eps
    return advantage, stats_of(case, sample, live, look, kinds, silent, count, advantage)


def stats_of(case, sample, live, look, kinds, silent, count, advantage):
    mixed = {
        e for cell in look("group").values() if kind_of(samples_of(cell, case, sample)[0]) == "spread" for e in cell
    }
    inflation, factors = [0.0] * len(advantage), []
    for cell in look("group_agent").values():
        shares = {e: float(case["weight"][e]) * (int(case["tokens"][e]) if sample == "token" else 1) for e in cell}
        factor = sum(shares[e] * advantage[e] ** 2 for e in cell) / sum(shares.values())
        for e in cell:
            inflation[e] = factor
        if any(e not in silent for e in cell):
            factors.append(factor)
    calls = len(live)
    flat = [e for e in live if silent.get(e) == "flat"]
    return {
        "calls": calls,
        "samples": count,
        "cells": len(kinds),
        "singletons": kinds.count("singleton"),
        "singleton_share": sum(kind == "singleton" for kind in silent.values()) / max(calls, 1),
        "zero_spread": kinds.count("flat"),
        "zero_spread_share": len(flat) / max(calls, 1),
        "mixed_share": sum(e in mixed for e in flat) / max(calls, 1),
        "inflation": inflation,
        "inflation_mean": sum(factors) / max(len(factors), 1),
        "inflation_max": max(inflation, default=0.0),
    }


def returns_to_go(reward, ends, discount, mask):
    """One column: for every unmasked step, the discounted sum up to its end, written out term by term."""
    steps = [t for t in range(len(reward)) if mask[t]]
    result = [0.0] * len(reward)
    for i, t in enumerate(steps):
        factor = 1.0
        for later in steps[i:]:
            result[t] += factor * float(reward[later])
            factor *= discount
            if ends[later]:
                break
    return result


def gae(reward, value, bootstrap, ends, discount, decay, mask):
    """One column: sums of temporal-difference errors, written out term by term."""
    steps = [t for t in range(len(reward)) if mask[t]]
    delta = {}
    for i, t in enumerate(steps):
        after = float(value[steps[i + 1]]) if i + 1 < len(steps) else float(bootstrap)
        delta[t] = float(reward[t]) + (0.0 if ends[t] else discount * after) - float(value[t])
    advantage, target = [0.0] * len(reward), [0.0] * len(reward)
    for i, t in enumerate(steps):
        factor = 1.0
        for later in steps[i:]:
            advantage[t] += factor * delta[later]
            factor *= discount * decay
            if ends[later]:
                break
        target[t] = advantage[t] + float(value[t])
    return advantage, target


def token_weights(tokens, trajectory, agent, mask, mode, constant):
    live = [e for e in range(len(tokens)) if mask[e] and tokens[e] > 0]
    rollouts = gather(live, lambda e: int(trajectory[e]))
    weight = [0.0] * len(tokens)
    for calls in rollouts.values():
        agents = gather(calls, lambda e: int(agent[e]))
        for e in calls:
            weight[e] = {
                "token_mean": lambda: 1.0 / sum(float(tokens[j]) for j in live),
                "sequence_mean": lambda c=calls: 1.0 / len(rollouts) / sum(float(tokens[j]) for j in c),
                "sum_constant": lambda: 1.0 / len(rollouts) / constant,
                "agent_mean": lambda e=e, a=agents: (
                    1.0 / len(rollouts) / len(a) / sum(float(tokens[j]) for j in a[int(agent[e])])
                ),
            }[mode]()
    return weight
