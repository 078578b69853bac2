"""The calls that are legal for one agent, spelled as in JSON: what schemas list, prompts show and the reader allows."""

from collections.abc import Mapping, Sequence

from ddpomdp.harness import BOUNDS, Argument, Harness

Values = tuple[str | int, ...]
Calls = Mapping[str, Mapping[str, Values]]  # tool -> argument -> legal values; both in the harness's order


def legal_calls(harness: Harness, tools: int, whom: int, bounds: Sequence[int], roster: Sequence[str]) -> Calls:
    """What one agent may call: tool, argument, legal values.

    Args:
      harness: the grammar.
      tools, whom, bounds: one agent's row of `Legal`, as numbers.
      roster: names of the agent's roster rows, in order; a row without a name is left out.

    Every complete call made of these values is legal: no value depends on another argument's.
    """

    def values(argument: Argument) -> Values:
        if argument.bits:
            allowed = [value for i, value in enumerate(argument.values) if whom >> i & 1]
        elif argument.bound is not None:
            allowed = list(argument.values[: bounds[BOUNDS.index(argument.bound)]])
        else:
            allowed = list(argument.values)
        return spelled(allowed, roster)

    calls = {
        tool.name: {argument.name: values(argument) for argument in tool.arguments}
        for index, tool in enumerate(harness.tools)
        if tools >> index & 1
    }
    return {name: arguments for name, arguments in calls.items() if all(arguments.values())}


def all_calls(harness: Harness) -> Calls:
    """What anybody may ever call; roster rows stand as `row_0`, since who sits there changes."""
    offered = [tool for tool in harness.tools if all(argument.values for argument in tool.arguments)]
    return {tool.name: {argument.name: argument.values for argument in tool.arguments} for tool in offered}


def spelled(values: Sequence[str | int], roster: Sequence[str]) -> Values:
    """Values with roster rows by the names of those who sit there; rows without a name are left out."""
    names = {f"row_{i}": name for i, name in enumerate(roster)}
    named = [names.get(str(value)) if is_row(value) else value for value in values]
    return tuple(value for value in named if value is not None)


def is_row(value: str | int) -> bool:
    """Whether a value stands for a row of the caller's roster."""
    return isinstance(value, str) and value.startswith("row_") and value[4:].isdigit()
