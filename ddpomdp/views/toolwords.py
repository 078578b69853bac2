"""What tools and their arguments are called in words, and calls as JSON Schemas of function tools."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddpomdp.views.grammar import Calls, is_row

WORDS: Mapping[str, str] = {
    "wait": "Let time pass until children return, or mail comes, or the deadline is met.",
    "wait.for": "How many of the children now at work to wait for.",
    "spawn": "Bring new agents to life and hand each of them the next part of your rows.",
    "spawn.role": "Role of the new agents.",
    "spawn.count": "How many; as many as fit are born.",
    "spawn.chunk": "Rows handed to each; even: an even split of what remains.",
    "spawn.brief": "How much detail their instructions have. More costs tokens and is better understood.",
    "delegate": "Hand more rows to children that are idle and whose return you have read.",
    "delegate.to": "Who gets the rows.",
    "delegate.rows": (
        "Which rows: next (not handed out yet), missing (handed out, nothing known), conflicting (values differ), "
        "again (those handed out, once more)."
    ),
    "delegate.chunk": "Rows handed to each; even: an even split.",
    "delegate.brief": "How much detail the instructions have.",
    "message": "Send claims to others.",
    "message.to": "Who gets them: a group, or a child by name.",
    "message.claims": "Which of the claims you know.",
    "message.detail": "A summary is shorter, and may garble a claim.",
    "return": "Report to your parent and be idle until it has work for you.",
    "return.claims": "Which of the claims you know.",
    "return.detail": "A summary is shorter, and may garble a claim.",
    "aggregate": "Read what has arrived from children and merge all you know into the answer. The last one counts.",
    "aggregate.rule": (
        "How a row with several values is decided: majority, verdict (votes weighted by verdicts), best (highest "
        "confidence), last (newest), union (all values)."
    ),
    "despawn": "End a child's life; a return that you have not read is lost.",
    "despawn.who": "Which child.",
    "stop": "End the episode. The answer is your last aggregate.",
}


def about(name: str, words: Mapping[str, str]) -> str:
    """What a tool or a `tool.argument` is, by the task's `words` or else by ours; empty if neither knows it."""
    return words.get(name, WORDS.get(name, ""))


def schemas(calls: Calls, words: Mapping[str, str], roles: Sequence[str]) -> list[dict[str, Any]]:
    """Function tools in the shape that chat-completion endpoints take, one per tool of `calls`.

    An argument with a single legal value may be left out of a call. Where `calls` names no roster (`all_calls`), a
    roster row is any agent's name.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool,
                "description": about(tool, words) or f"The task's tool {tool}.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: _property(values, about(f"{tool}.{name}", words), roles)
                        for name, values in arguments.items()
                    },
                    "required": [name for name, values in arguments.items() if len(values) > 1],
                    "additionalProperties": False,
                },
            },
        }
        for tool, arguments in calls.items()
    ]


def _property(values: Sequence[str | int], description: str, roles: Sequence[str]) -> dict[str, Any]:
    said = {"description": description} if description else {}
    if any(map(is_row, values)):
        fixed = [str(value) for value in values if not is_row(value)]
        names = "|".join([*fixed, rf"({'|'.join(roles)})_[0-9]+"])
        return {"type": "string", "pattern": f"^({names})$", **said}
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values):
        return {"type": "integer", "enum": numbers, "minimum": min(numbers), "maximum": max(numbers), **said}
    kinds = ["integer", "string"] if numbers else "string"
    return {"type": kinds, "enum": list(values), **said}
