"""What an agent is told in words: once about its role and the harness, then about each of its turns.

Everything here is rendered from the harness and from an observation, so a prompt holds nothing that the agent may not
know: no truth, no tick, no quality before the end. Same input, same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpomdp.enums import ResultCode, StopReason
from ddpomdp.env import Env
from ddpomdp.harness import AGGREGATE, BRIEFS, DELEGATE, DESPAWN, FIRST_TASK_TOOL, RETURN, SPAWN, STOP
from ddpomdp.options import choose
from ddpomdp.views.grammar import Calls, all_calls
from ddpomdp.views.spoken import SHAPE
from ddpomdp.views.toolwords import about

RESULTS = {
    ResultCode.NOTHING: "nothing came of it",
    ResultCode.DONE: "done",
    ResultCode.IN_PROGRESS: "in progress, the row needs more turns",
    ResultCode.FOUND: "found",
    ResultCode.EMPTY: "found nothing",
    ResultCode.FAULT: "the service failed",
    ResultCode.REFUSED: "refused, it did not fit",
    ResultCode.ILLEGAL: "not legal, it became a wait",
    ResultCode.ACCEPTED: "accepted",
    ResultCode.REJECTED: "rejected",
}
LEADS_ONLY = frozenset((SPAWN, DELEGATE, AGGREGATE, DESPAWN))


@dataclass(frozen=True)
class Seen:
    """One agent's observation as numbers, with the names of its roster rows.

    Attributes:
      own, result: f32[.]; claims: f32[C,.]; roster: f32[R,.]; board: f32[M,.]; features as `env.spec` names them.
      names: of the roster rows that are filled, in order.
      legal: what the agent may call.
    """

    own: np.ndarray
    result: np.ndarray
    claims: np.ndarray
    roster: np.ndarray
    board: np.ndarray
    names: Sequence[str]
    legal: Calls


def task_words(env: Env) -> Mapping[str, str]:
    """What the task says of itself in words (`Task.words`), empty for a task that says nothing."""
    return getattr(env.rules.task, "words", {})


# Once ---------------------------------------------------------------------------------------------------------------


def system_prompt(env: Env, role: str) -> str:
    """What an agent of a role is told before its first turn: task, score, team, limits, tools, how to answer.

    Raises:
      ValueError: an unknown role.
    """
    choose("role", role, env.spec.roles)
    words, lead = task_words(env), role == env.spec.roles[0]
    parts = [
        f"You are {'the lead (lead_0)' if lead else f'a {role}'} in a team of language-model agents.",
        "# Task\n" + words.get("task", f"{env.id}: {env.spec.num_subtasks} rows of work."),
        "# What counts\n" + _score(env, words),
        "# Team\n" + "\n".join(_team(env, words)),
        "# Limits\n" + "\n".join(_limits(env)),
        "# Tools\n" + "\n".join(_tools(env, words, lead)),
        "# How to answer\n"
        f"Each turn, answer with exactly one call: a function call, or JSON such as {SHAPE}. "
        "The values that are legal stand with each turn. A call that cannot be read or is not legal changes nothing, "
        "and you are told what was wrong.",
    ]
    return "\n\n".join(parts)


def _score(env: Env, words: Mapping[str, str]) -> str:
    quality = words.get("score", "The quality of the answer, 0 to 1; the answer is the lead's last aggregate.")
    token, second = float(env.params.price_token), float(env.params.price_second)
    lines = [quality, f"At the end the team is paid quality - {token:.6g} per token - {second:.6g} per second."]
    weights = {name: float(weight) for name, weight in sorted(env.params.weights.items()) if float(weight) != 0}
    if set(weights) != {"team"}:
        channels = " + ".join(f"{weight:.6g} {name}" for name, weight in weights.items())
        lines.append(f"Your reward: {channels or 'none'}.")
    return "\n".join(lines)


def _team(env: Env, words: Mapping[str, str]) -> list[str]:
    topology = env.rules.topology
    lines = [f"- {role}: {words.get(role, 'plans, hands out work, merges and stops' if not i else 'works on rows')}"
             for i, role in enumerate(env.spec.roles)]  # fmt: skip
    if topology.crew:
        return [*lines, f"Topology {topology.name}: the lead has one child of each other role; nobody is spawned."]
    if not topology.spawn:
        return [*lines, f"Topology {topology.name}: nobody can be spawned."]
    who = "leads below the lead may spawn too" if topology.sub_leads else "only the lead spawns"
    talk = ["siblings may message each other" if topology.peers else "siblings cannot message each other"]
    if not topology.up:
        talk.append("children speak by returning only")
    if not topology.down:
        talk.append("children are called once and not written to")
    if topology.listens:
        talk.append("a wait without children is for mail on its way")
    depth = f"at most {topology.max_depth} levels below the lead"
    return [*lines, f"Topology {topology.name}: {who}, {depth}; {'; '.join(talk)}."]


def _limits(env: Env) -> list[str]:
    spec, config, service = env.spec, env.rules.config, env.params.service
    lines = [f"- at most {spec.capacity} agents alive at once, you included"]
    if config.max_turns is not None:
        lines.append(f"- at most {config.max_turns:,} turns other than wait, all agents together")
    if config.max_tokens is not None:
        lines.append(f"- at most {config.max_tokens:,} tokens, all agents together")
    lines.append(f"- a wait ends after {int(service.wait_limit_ms) / 1000:g} s at the latest")
    if config.lead_blocks:
        lines.append("- while children are at work and nothing unread has arrived, you can only organise or wait")
    return lines


def _tools(env: Env, words: Mapping[str, str], lead: bool) -> list[str]:
    index = {tool: env.harness.tool(tool) for tool in all_calls(env.harness)}
    never = {RETURN} if lead else LEADS_ONLY | {STOP}
    tools = [tool for tool, i in index.items() if i >= FIRST_TASK_TOOL or i not in never]
    return [f"- {tool}: {about(tool, words) or 'a tool of the task'}" for tool in tools]


# Each turn ----------------------------------------------------------------------------------------------------------


def turn_prompt(env: Env, seen: Seen, board_rows: int) -> str:
    """What an agent is told at its turn: clock, tokens, last call, roster, claims, board, and what it may call.

    Args:
      env: the environment.
      seen: what the agent sees.
      board_rows: most rows of the board that are listed one by one.
    """
    own = dict(zip(env.spec.self_features, seen.own.tolist(), strict=True))
    parts = [
        f"Clock {_clock(own['clock_min'])}. Tokens spent: {round(1000 * own['spent_kilotokens']):,} "
        f"(you, and children whose returns you have read). Your turn {round(100 * own['turn']) + 1}.",
        _last_call(env, seen.result),
        "\n".join(_work(env, own)),
        "\n".join(_children(env, own, seen)),
        "\n".join(_claims(env, seen.claims)),
        "\n".join(_board(env, seen.board, board_rows)),
        "\n".join(("You may call:", *_calls(seen.legal))),
    ]
    return "\n\n".join(part for part in parts if part)


def _clock(minutes: float) -> str:
    seconds = round(60 * minutes)
    return f"{seconds // 60} min {seconds % 60:02d} s"


def _last_call(env: Env, result: np.ndarray) -> str:
    row = dict(zip(env.spec.result_features, result.tolist(), strict=True))
    tool, code, value = round(row["tool_id"]), round(row["code_id"]), round(row["value_id"])
    if tool < 0 or code < 0:
        return ""
    said = RESULTS[ResultCode(code)] + (f" value {value}" if value >= 0 else "")
    return f"Your last call, {env.spec.tools[tool]}: {said}."


def _work(env: Env, own: Mapping[str, float]) -> list[str]:
    rows = env.spec.num_subtasks
    left, done = round(own["rows_left"] * rows), round(own["rows_done"] * rows)
    lines = [f"Your rows: {left} left to hand out or work on, {done} handed out or done."]
    extra = [name for name in env.rules.task.self_features if own[name]]
    lines += [f"{name.replace('_', ' ')}: {own[name]:.6g}" for name in extra]
    return lines


def _children(env: Env, own: Mapping[str, float], seen: Seen) -> list[str]:
    idle, unread, out = (round(10 * own[f"children_{state}"]) for state in ("idle", "unread", "out"))
    total = idle + unread + out
    if not total:
        return ["You have no children."]
    lines = [f"Children: {total}: {idle} idle and read, {unread} returned and unread, {out} running."]
    rows = env.spec.num_subtasks
    for name, features in zip(seen.names, seen.roster.tolist(), strict=False):
        child = dict(zip(env.spec.roster_features, features, strict=True))
        state = "idle" if child["idle"] else "unread" if child["unread"] else "running"
        handed, claims = round(child["rows_handed"] * rows), round(child["claims_offered"] * rows)
        told = f"- {name}: {state}, {_count(handed, 'row')} handed {_clock(child['handed_ago_min'])} ago"
        told += f", brief {BRIEFS[round(child['brief'])]}"
        lines.append(told if state == "running" else f"{told}, {_count(claims, 'claim')} in its return")
    if total > len(seen.names):
        lines.append(f"- and {total - len(seen.names)} more that are not listed")
    return lines


def _count(number: float, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{round(number)} {noun}{'' if round(number) == 1 else 's'}"


def _claims(env: Env, claims: np.ndarray) -> list[str]:
    lines = []
    for features in claims.tolist():
        claim = dict(zip(env.spec.claim_features, features, strict=True))
        if not any(features):  # an empty place: a claim has a confidence
            continue
        row = round(claim["row"] * env.spec.num_subtasks)
        source = "your own" if claim["own"] else "from others"
        value = round(claim["value_id"])
        lines.append(f"- {len(lines)}: row {row}, value {value}, confidence {claim['confidence']:.2f}, {source}")
    return ["Newest claims you know:", *lines] if lines else ["You know no claims."]


def _board(env: Env, board: np.ndarray, most: int) -> list[str]:
    rows = [dict(zip(env.spec.board_features, features, strict=True)) for features in board.tolist()]
    known = [m for m, row in enumerate(rows) if row["values"] > 0]
    split = [m for m in known if rows[m]["values"] > 1]
    handed = [m for m, row in enumerate(rows) if row["handed"] > 0]
    waiting = [m for m in handed if rows[m]["values"] == 0]
    lines = [
        f"Table of {len(rows)} rows: {len(handed)} handed out or done, {len(known)} with a value, "
        f"{len(split)} of them with conflicting values, {len(waiting)} handed out without a value yet."
    ]
    # Rows in conflict come first, then those with the fewest votes: they are what a decision is about.
    order = sorted(known, key=lambda m: (-rows[m]["values"], rows[m]["top_origins"], m))
    for m in sorted(order[:most]):
        row = rows[m]
        top = f"{_count(row['values'], 'value')}, top {round(row['top_value_id'])}"
        votes = f"votes: {round(row['top_origins'])} for it, {round(row['second_origins'])} for the next"
        verdicts = f"verdicts +{round(row['accepts'])} -{round(row['rejects'])}"
        said = [votes, f"confidence {row['top_confidence']:.2f}"] + [verdicts] * (row["accepts"] + row["rejects"] > 0)
        lines.append(f"- row {m}: {top} ({'; '.join(said)})")
    if len(order) > most:
        lines.append(f"- and {len(order) - most} more rows with a value, not listed")
    if waiting:
        lines.append(f"- handed out, no value yet: rows {_ranges(waiting, most)}")
    return lines


def _ranges(numbers: Sequence[int], most: int) -> str:
    """Whole numbers in rising order as ranges: 0-3, 7, 9-11."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [f"{a}-{b}" if b > a else str(a) for a, b in spans[:most]]
    return ", ".join(shown) + (f" and {len(spans) - most} more spans" if len(spans) > most else "")


def _calls(legal: Calls) -> list[str]:
    def argument(name: str, values: Sequence[Any]) -> str:
        return f"{name}: {' | '.join(map(str, values))}"

    return [
        f"- {tool}" + (f" ({'; '.join(argument(*item) for item in arguments.items())})" if arguments else "")
        for tool, arguments in legal.items()
    ]


# At the end ---------------------------------------------------------------------------------------------------------


def final_words(reason: StopReason, quality: float, reward: float, seconds: float, tokens: int) -> str:
    """What is said after the end: why it ended, quality, cost, and the reward of the whole episode."""
    why = {
        StopReason.STOPPED: "you stopped",
        StopReason.BUDGET: "a budget ran out",
        StopReason.HORIZON: "the horizon was reached",
    }
    return (
        f"The episode has ended: {why[reason]}. Quality {quality:.4f}, {tokens:,} tokens, {seconds:,.0f} s. "
        f"Your reward: {reward:.4f}."
    )
