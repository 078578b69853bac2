"""The harness: roles, tools and their arguments, and the grammar of turns.

A turn is one tool call, `int32[1 + A]`: tool index, then argument positions, padding 0. Its tokens, its index in the
menu and its JSON are three spellings of the same call. Policies are trained, the harness is not: its digest stands in
every trace, checkpoint and result.

Axis letters: N slot, A argument position, R roster row, T tool, V vocabulary.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import Decision, EventKind
from ddpomdp.luck import below
from ddpomdp.pytree import once, pytree, stacked

CORE_TOOLS = ("wait", "spawn", "delegate", "message", "return", "aggregate", "despawn", "stop")
WAIT, SPAWN, DELEGATE, MESSAGE, RETURN, AGGREGATE, DESPAWN, STOP = range(len(CORE_TOOLS))
FIRST_TASK_TOOL = len(CORE_TOOLS)

_KINDS = (
    EventKind.WAIT,
    EventKind.SPAWN,
    EventKind.DELEGATE,
    EventKind.MESSAGE,
    EventKind.RETURN,
    EventKind.AGGREGATE,
    EventKind.DESPAWN,
    EventKind.STOP,
)
_DECISIONS = (
    Decision.COMMUNICATE,
    Decision.SPAWN,
    Decision.DELEGATE,
    Decision.COMMUNICATE,
    Decision.COMMUNICATE,
    Decision.AGGREGATE,
    Decision.SPAWN,
    Decision.STOP,
)

WAIT_FOR = ("one", "half", "all")
SELECTORS = ("next", "missing", "conflicting", "again")
CLAIMS = ("all", "new", "best", "disputed")
DETAILS = ("summary", "full")
BRIEFS = ("short", "standard", "detailed")
GROUPS = ("parent", "children", "peers")
EVEN = "even"  # chunk value: an even split of what remains
MENU_LIMIT = 1024

# Dynamic bounds of argument values, one integer per agent each (`Legal.bounds`).
BOUNDS = ("wait_for", "spawn_role", "idle_rows", "child_rows", "own_claims")


@dataclass(frozen=True)
class Argument:
    """One argument position of a tool.

    `values` are spelled as in JSON. Legal values are the first `bound` of them (`bound` names a dynamic bound, None:
    all), except for `whom` of a message, which is a bit set.
    """

    name: str
    values: tuple[str | int, ...]
    bound: str | None = None
    bits: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool and its arguments in order; those of a single value are left out: no token says which, `turn` takes it."""

    name: str
    arguments: tuple[Argument, ...] = ()
    left_out: tuple[Argument, ...] = field(default=(), compare=False, repr=False)


@pytree
class Legal:
    """What each agent may call, derived only from what it knows: a few integers per agent."""

    tools: jax.Array  # int32[N]     bit t: tool t may be called
    whom: jax.Array  # int32[N]     bit i: the i-th value of message's `whom` may be addressed
    bounds: jax.Array  # int32[N,5]   number of legal values per name in BOUNDS


@dataclass(frozen=True)
class Harness:
    """Roles, tools, topology and limits of one environment: a value with a digest.

    Attributes:
      tools: the grammar; the first eight are `CORE_TOOLS`.
      roles: role names; uid 0 has role 0, `lead`.
      spawnable: roles that may be spawned, in the order of the `role` argument's values.
      topology: name and numbers of the topology.
      limits: everything else a policy was trained under (capacity, budgets, service laws).
    """

    tools: tuple[Tool, ...]
    roles: tuple[str, ...]
    spawnable: tuple[str, ...]
    topology: tuple[tuple[str, str | int | bool], ...]
    limits: tuple[tuple[str, str | int | float | bool | None], ...]

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that name this harness."""
        text = json.dumps(self.described(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def described(self) -> dict[str, Any]:
        """The harness as plain data: what its digest is of, and what stands in a trace."""
        plain = dataclasses.asdict(self)
        for tool in plain["tools"]:
            del tool["left_out"]
        return plain

    @cached_property
    def num_args(self) -> int:
        """A: argument positions of a turn."""
        return max(len(tool.arguments) for tool in self.tools)

    @cached_property
    def vocabulary(self) -> int:
        """V: one more than the largest token of any position."""
        sizes = [len(argument.values) for tool in self.tools for argument in tool.arguments]
        return max([len(self.tools), *sizes])

    @cached_property
    def menu_size(self) -> int:
        """K: how many complete calls the harness has."""
        return sum(math.prod(len(argument.values) for argument in tool.arguments) for tool in self._offered)

    @cached_property
    def menu(self) -> np.ndarray:
        """int32[K, 1+A]: every complete call in a fixed order (tool, then arguments lexicographically)."""
        if self.menu_size > MENU_LIMIT:
            widest = max(self._offered, key=lambda tool: math.prod(len(a.values) for a in tool.arguments))
            names = ", ".join(f"{widest.name}.{a.name} ({len(a.values)} values)" for a in widest.arguments)
            raise ValueError(
                f"the menu would have {self.menu_size} calls, at most {MENU_LIMIT} are allowed: "
                f"coarsen {names}, or use actions='tokens'"
            )
        calls = [
            (index, *values, *(0,) * (self.num_args - len(values)))
            for index, tool in enumerate(self.tools)
            if tool in self._offered
            for values in itertools.product(*(range(len(argument.values)) for argument in tool.arguments))
        ]
        return np.asarray(calls, np.int32)

    @cached_property
    def menu_index(self) -> dict[tuple[int, ...], int]:
        """Where a call, as a tuple of 1+A integers, stands in the menu."""
        return {tuple(int(x) for x in call): index for index, call in enumerate(self.menu)}

    @cached_property
    def _offered(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if all(argument.values for argument in tool.arguments))

    def tool(self, name: str) -> int:
        """Index of a tool; ValueError names the tools there are."""
        for index, tool in enumerate(self.tools):
            if tool.name == name:
                return index
        raise ValueError(f"unknown tool {name!r}; tools: {', '.join(tool.name for tool in self.tools)}")

    def turn(self, tool: str, **args: str | int) -> np.ndarray:
        """int32[1+A] of a call given by argument names and values; omitted arguments take their first value."""
        index = self.tool(tool)
        tokens = np.zeros(1 + self.num_args, np.int32)
        tokens[0] = index
        arguments = {argument.name: (i, argument) for i, argument in enumerate(self.tools[index].arguments)}
        single = {argument.name: argument for argument in self.tools[index].left_out}
        for name, value in args.items():
            if name in single:
                _value_index(tool, single[name], value)
                continue
            if name not in arguments:
                raise ValueError(f"{tool} has no argument {name!r}; arguments: {', '.join(arguments) or 'none'}")
            position, argument = arguments[name]
            tokens[1 + position] = _value_index(tool, argument, value)
        return tokens

    # Legality ----------------------------------------------------------------------------------------------------

    def argument_bounds(self, legal: Legal, tool: jax.Array) -> list[jax.Array]:
        """For each argument position: how many values are legal for `tool` int32[N] (bit sets: how many there are)."""
        bounds = []
        for position in range(self.num_args):
            bound = jnp.ones_like(tool)
            for index, spec in enumerate(self.tools):
                if position < len(spec.arguments):
                    argument = spec.arguments[position]
                    size = jnp.int32(len(argument.values))
                    if argument.bound is not None:
                        size = legal.bounds[:, BOUNDS.index(argument.bound)]
                    bound = jnp.where(tool == index, size, bound)
            bounds.append(bound)
        return bounds

    def is_legal(self, legal: Legal, turns: jax.Array) -> jax.Array:
        """bool[N]: every position of turns int32[N, 1+A] is legal and unused positions are 0."""
        tool = turns[:, 0]
        in_range = (tool >= 0) & (tool < len(self.tools))
        tool = jnp.clip(tool, 0, len(self.tools) - 1)
        ok = in_range & (((legal.tools >> tool) & 1) == 1)
        for position, bound in enumerate(self.argument_bounds(legal, tool)):
            token = turns[:, 1 + position]
            ok = ok & (token >= 0) & (token < bound)
        whom = jnp.clip(turns[:, 1], 0, 30)
        return ok & ((tool != MESSAGE) | (((legal.whom >> whom) & 1) == 1))

    def legal_count(self, legal: Legal) -> jax.Array:
        """int32[N]: how many complete calls are legal."""
        total = jnp.zeros_like(legal.tools)
        for index, spec in enumerate(self.tools):
            calls = jnp.ones_like(total)
            for argument in spec.arguments:
                if argument.bits:
                    calls = calls * jax.lax.population_count(legal.whom)
                elif argument.bound is not None:
                    calls = calls * legal.bounds[:, BOUNDS.index(argument.bound)]
                else:
                    calls = calls * jnp.int32(len(argument.values))
            total = total + jnp.where((legal.tools >> index) & 1 == 1, calls, 0)
        return total

    def legal_tokens(self, legal: Legal, turns: jax.Array, position: int) -> jax.Array:
        """bool[N, V]: tokens legal at `position` (0: the tool) given the positions before it in turns int32[N, 1+A]."""
        if not 0 <= position <= self.num_args:
            raise ValueError(f"position {position} is not in 0..{self.num_args}")
        token = jnp.arange(self.vocabulary, dtype=jnp.int32)[None, :]
        if position == 0:
            return ((legal.tools[:, None] >> jnp.minimum(token, 30)) & 1 == 1) & (token < len(self.tools))
        tool = turns[:, 0]
        bound = self.argument_bounds(legal, tool)[position - 1]
        allowed = token < bound[:, None]
        if position == 1:
            addressed = (legal.whom[:, None] >> jnp.minimum(token, 30)) & 1 == 1
            allowed = allowed & ((tool[:, None] != MESSAGE) | addressed)
        return allowed

    def sample(self, words: Sequence[jax.Array], legal: Legal) -> jax.Array:
        """Turns int32[N, 1+A], uniform over legal tokens position by position; `words`: 1+A arrays uint32[N]."""
        tool = once(partial(_nth_bit, num_bits=len(self.tools)), legal.tools, words[0])
        columns = [tool]
        for position, bound in enumerate(self.argument_bounds(legal, tool)):
            word = words[1 + position]
            value = below(word, 10, 22, bound)  # bounds are below 1,024
            if position == 0:
                whom = _nth_bit(legal.whom, word, len(self.tools[MESSAGE].arguments[0].values))
                value = jnp.where(tool == MESSAGE, whom, value)
            columns.append(value)
        return stacked(columns)

    def menu_mask(self, legal: Legal) -> jax.Array:
        """bool[N, K]: which menu calls are legal."""
        calls = jnp.asarray(self.menu)
        bounds = jnp.asarray(np.stack([self._dynamic(call) for call in self.menu]))  # int32[K, 5]
        ok = (legal.tools[:, None] >> calls[None, :, 0]) & 1 == 1
        ok = ok & jnp.all(bounds[None] < legal.bounds[:, None, :], axis=-1)
        addressed = (legal.whom[:, None] >> jnp.minimum(calls[None, :, 1], 30)) & 1 == 1
        return ok & ((calls[None, :, 0] != MESSAGE) | addressed)

    def _dynamic(self, call: np.ndarray) -> np.ndarray:
        tokens = np.full(len(BOUNDS), -1, np.int32)
        for position, argument in enumerate(self.tools[call[0]].arguments):
            if argument.bound is not None:
                tokens[BOUNDS.index(argument.bound)] = call[1 + position]
        return tokens

    # JSON --------------------------------------------------------------------------------------------------------

    def to_json(self, turn: Sequence[int] | np.ndarray, roster: Sequence[str] = ()) -> dict:
        """The call as a JSON object; `roster` lists the names of the caller's roster rows, in order.

        Raises ValueError naming tool, argument and allowed values if a token is out of range, an unused position is
        not 0, or a roster row has no name.
        """
        tokens = [int(x) for x in np.asarray(turn).reshape(-1)]
        if len(tokens) != 1 + self.num_args:
            raise ValueError(f"a turn has {1 + self.num_args} positions, got {len(tokens)}")
        if not 0 <= tokens[0] < len(self.tools):
            raise ValueError(f"tool token {tokens[0]} is not in 0..{len(self.tools) - 1}")
        tool = self.tools[tokens[0]]
        args = {}
        for position, token in enumerate(tokens[1:]):
            if position >= len(tool.arguments):
                if token != 0:
                    raise ValueError(f"{tool.name}: unused position {position + 1} is {token}, must be 0")
                continue
            argument = tool.arguments[position]
            if not 0 <= token < len(argument.values):
                raise ValueError(f"{tool.name}.{argument.name}: token {token} is not in 0..{len(argument.values) - 1}")
            value = argument.values[token]
            row = _roster_row(value)
            if row is not None:
                if row >= len(roster):
                    raise ValueError(f"{tool.name}.{argument.name}: roster row {row} is empty ({len(roster)} rows)")
                value = roster[row]
            args[argument.name] = value
        return {"tool": tool.name, "args": args}

    def from_json(self, call: Mapping, roster: Sequence[str] = ()) -> np.ndarray:
        """int32[1+A] of a JSON call, given the caller's roster names.

        Raises ValueError naming tool, argument, value and what is allowed; every argument must be given.
        """
        if not isinstance(call, Mapping) or not isinstance(call.get("tool"), str):
            raise ValueError(f"a call is an object with 'tool' and 'args', got {call!r}")
        extra = sorted(set(call) - {"tool", "args"})
        if extra:
            raise ValueError(f"unknown field {extra[0]!r} in a call; fields: tool, args")
        args = call.get("args", {})
        if not isinstance(args, Mapping):
            raise ValueError(f"{call['tool']}: 'args' must be an object, got {args!r}")
        tool = self.tools[self.tool(call["tool"])]
        needed = [argument.name for argument in tool.arguments]
        missing = [name for name in needed if name not in args]
        if missing:
            raise ValueError(f"{tool.name} needs argument {missing[0]!r}")
        named = {}
        for name, value in args.items():
            argument = next((a for a in tool.arguments if a.name == name), None)
            if argument is None:
                raise ValueError(f"{tool.name} has no argument {name!r}; arguments: {', '.join(needed) or 'none'}")
            if isinstance(value, str) and value in roster:
                row = f"row_{list(roster).index(value)}"
                if row in argument.values:
                    value = row
            elif _roster_row(value) is not None:
                raise ValueError(f"{tool.name}.{name}: {value!r} is not a name of the roster {list(roster)}")
            named[name] = value
        return self.turn(tool.name, **named)


def kind_and_decision(num_tools: int) -> tuple[np.ndarray, np.ndarray]:
    """EventKind and Decision of each tool index, int32[T] each; task tools are TOOL and NONE."""
    extra = num_tools - len(CORE_TOOLS)
    kinds = np.asarray([*_KINDS, *[EventKind.TOOL] * extra], np.int32)
    return kinds, np.asarray([*_DECISIONS, *[Decision.NONE] * extra], np.int32)


def core_tools(
    *,
    spawnable: Sequence[str],
    counts: Sequence[int],
    chunks: Sequence[int | str],
    delegate_chunks: Sequence[int | str],
    delegate_briefs: Sequence[str],
    rules: Sequence[str],
    roster: int,
    crew: bool = False,
    spawn_briefs: Sequence[str] = BRIEFS,
    details: Sequence[str] = DETAILS,
) -> tuple[Tool, ...]:
    """The eight tools of every task, with the values a preset offers.

    An argument with a single value is left out of the grammar. Tools that cannot be used (no role to spawn, roster of
    0) keep their place with empty values, so that tool indices are the same in every environment. A `crew` is delegated
    to without being spawned, and nobody leaves it.
    """
    rows = tuple(f"row_{i}" for i in range(roster))

    def tool(name: str, *arguments: Argument) -> Tool:
        said = tuple(a for a in arguments if len(a.values) != 1 or a.bound is not None or a.bits)
        return Tool(name, said, tuple(a for a in arguments if a not in said))

    usable = bool(spawnable)
    return (
        tool("wait", Argument("for", WAIT_FOR, "wait_for")),
        tool(
            "spawn",
            Argument("role", tuple(spawnable), "spawn_role"),
            Argument("count", tuple(counts)),
            Argument("chunk", tuple(chunks)),
            Argument("brief", tuple(spawn_briefs)),
        ),
        tool(
            "delegate",
            Argument("to", ("all_idle", *rows) if usable or crew else (), "idle_rows"),
            Argument("rows", SELECTORS),
            Argument("chunk", tuple(delegate_chunks)),
            Argument("brief", tuple(delegate_briefs)),
        ),
        tool(
            "message",
            Argument("to", (*GROUPS, *rows), bits=True),
            Argument("claims", CLAIMS),
            Argument("detail", tuple(details)),
        ),
        tool("return", Argument("claims", CLAIMS), Argument("detail", tuple(details))),
        tool("aggregate", Argument("rule", tuple(rules))),
        tool("despawn", Argument("who", rows if usable else (), "child_rows")),
        tool("stop"),
    )


def rules_offered(offered: Sequence[str], rules: Sequence[str]) -> dict[tuple[int, str], tuple[int, ...]]:
    """What the values of aggregate's `rule` stand for, where only some of the task's rules are offered."""
    if tuple(offered) == tuple(rules):
        return {}
    return {(AGGREGATE, "rule"): tuple(rules.index(name) for name in offered)}


def _value_index(tool: str, argument: Argument, value: str | int) -> int:
    for index, allowed in enumerate(argument.values):
        if allowed == value and isinstance(value, bool) == isinstance(allowed, bool):
            return index
    shown = ", ".join(str(v) for v in argument.values)
    raise ValueError(f"{tool}.{argument.name}: got {value!r}, allowed: {shown}")


def _roster_row(value: object) -> int | None:
    if isinstance(value, str) and value.startswith("row_") and value[4:].isdigit():
        return int(value[4:])
    return None


def _nth_bit(bits: jax.Array, word: jax.Array, num_bits: int) -> jax.Array:
    """Index of a set bit of `bits` int32[N], chosen uniformly by `word` uint32[N]; 0 if none is set."""
    nth = below(word, 10, 22, jax.lax.population_count(bits))
    seen, chosen = jnp.zeros_like(bits), jnp.zeros_like(bits)
    for index in range(num_bits):
        is_set = (bits >> index) & 1
        chosen = jnp.where((is_set == 1) & (seen == nth), index, chosen)
        seen = seen + is_set
    return chosen
