"""The orchestrator in words: prompts, schemas, what is understood and refused, and the same episodes as Gymnasium's."""

import importlib.util
import itertools
import json
import random
import re
import time
from pathlib import Path

import gymnasium
import jax
import jsonschema
import numpy as np
import pytest
from fake_endpoint import endpoint, tool_call
from gymnasium.error import ResetNeeded

import ddpomdp
from ddpomdp.harness import STOP
from ddpomdp.views import loosejson
from ddpomdp.views.grammar import all_calls, legal_calls
from ddpomdp.views.prompt import Seen, turn_prompt
from ddpomdp.views.rootwise import life_name
from ddpomdp.views.spoken import Refused, understand

# One compilation of the text view and one of Gymnasium's serve all tests here.
OPTIONS = {"preset": "tiny", "max_ticks": 40, "max_turns": 30, "reward": "hybrid"}
SPAWN_ALL = {"tool": "spawn", "args": {"role": "searcher", "count": 3, "chunk": "even", "brief": "detailed"}}
WAIT_ALL = {"tool": "wait", "args": {"for": "all"}}
MERGE = {"tool": "aggregate", "args": {"rule": "majority"}}
STOP_NOW = {"tool": "stop", "args": {}}
ROOT = Path(__file__).parents[1]


def text_env(**form):
    return ddpomdp.text_env("Search-v0", **OPTIONS, **form)


def legal_of(env):
    """Every legal call, from the schemas of `tools()`."""
    calls = []
    for tool in env.tools():
        properties = tool["function"]["parameters"]["properties"]
        for values in itertools.product(*(field["enum"] for field in properties.values())):
            calls.append({"tool": tool["function"]["name"], "args": dict(zip(properties, values, strict=True))})
    return calls


def choose(rng, env, stop=0.0):
    """A legal call, tools equally often, `stop` seldom or never."""
    calls = legal_of(env)
    if rng.random() < stop and STOP_NOW in calls:
        return STOP_NOW
    tool = rng.choice(sorted({call["tool"] for call in calls if call["tool"] != "stop"}))
    return rng.choice([call for call in calls if call["tool"] == tool])


def state_of(env):
    return [np.asarray(x) for x in jax.tree.leaves(env._state)]


# Schemas and legality ----------------------------------------------------------------------------------------------


def test_schemas_allow_exactly_what_is_legal():
    """In 25 states: every call of the menu is valid under a schema if and only if it is legal, and round trips."""
    env, rng, states, legal_calls_seen, illegal_seen = text_env(), random.Random(0), 0, 0, 0
    harness = env.env.harness
    menu_mask = jax.jit(harness.menu_mask)
    env.reset(0)
    while states < 25:
        legal = jax.tree.map(lambda x: np.asarray(x)[None], env._told.legal)
        mask = np.asarray(menu_mask(legal))[0]
        names, tools = env._seen.names, env.tools()
        checks = {}
        for tool in tools:
            assert set(tool) == {"type", "function"} and tool["type"] == "function"
            function = tool["function"]
            assert set(function) == {"name", "description", "parameters"} and function["description"]
            assert re.fullmatch("[a-z_]{1,64}", function["name"])
            jsonschema.Draft202012Validator.check_schema(function["parameters"])
            checks[function["name"]] = jsonschema.Draft202012Validator(function["parameters"])
            assert function["parameters"]["additionalProperties"] is False
        told = [json.dumps(call, sort_keys=True) for call in legal_of(env)]
        expected = [json.dumps(harness.to_json(turn, names), sort_keys=True) for turn in harness.menu[mask]]
        assert sorted(told) == sorted(expected) and len(told) == mask.sum()
        for turn, is_legal in zip(harness.menu, mask, strict=True):
            try:
                call = harness.to_json(turn, names)
            except ValueError:  # a roster row that is empty
                assert not is_legal
                continue
            tool = checks.get(call["tool"])
            assert (tool is not None and tool.is_valid(call["args"])) == is_legal, call
            if is_legal:
                exact = understand(json.dumps(call), env._seen.legal, env._known)
                assert exact == call and (harness.from_json(exact, names) == turn).all()
                legal_calls_seen += 1
            else:
                with pytest.raises(Refused, match=r"not legal now|there is no|allowed now"):
                    understand(call, env._seen.legal, env._known)
                illegal_seen += 1
        states += 1
        if env.step(choose(rng, env, stop=0.05))[2]:
            env.reset(states)
    assert legal_calls_seen > 1000 and illegal_seen > 1000


def test_schemas_of_the_whole_harness():
    env = ddpomdp.text_env("Search-v0", preset="k2.5")  # no menu of this size; nothing is compiled
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in env.tools(all=True)}
    assert set(tools) == set(env.env.spec.tools)
    for schema in tools.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    good = {
        "spawn": {"role": "checker", "count": 256, "chunk": "even", "brief": "short"},
        "delegate": {"to": "searcher_12", "rows": "again", "chunk": 64, "brief": "detailed"},
        "despawn": {"who": "checker_3"},
        "message": {"to": "children", "claims": "best", "detail": "full"},
        "stop": {},
    }
    for name, args in good.items():
        jsonschema.validate(args, tools[name])
    for name, args in (
        ("despawn", {"who": "row_1"}),
        ("despawn", {"who": "manager_1"}),
        ("spawn", good["spawn"] | {"count": 5}),
        ("spawn", good["spawn"] | {"count": "4"}),
        ("stop", {"why": "done"}),
        ("delegate", {"to": "all_idle"}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(args, tools[name])
    count = tools["spawn"]["properties"]["count"]
    assert (count["type"], count["minimum"], count["maximum"]) == ("integer", 1, 256)


# What is understood and refused -------------------------------------------------------------------------------------

KNOWN = {
    "wait": {"for": ("one", "half", "all")},
    "spawn": {
        "role": ("searcher", "checker"),
        "count": (1, 2, 4),
        "chunk": (4, "even"),
        "brief": ("short", "standard", "detailed"),
    },
    "despawn": {"who": ("row_0", "row_1")},
    "aggregate": {"rule": ("majority", "best")},
    "stop": {},
}
LEGAL = {
    "wait": {"for": ("one",)},
    "spawn": KNOWN["spawn"] | {"count": (1, 2)},
    "despawn": {"who": ("searcher_1", "searcher_3")},
    "stop": {},
}
ARGS = {"role": "searcher", "count": 2, "chunk": "even", "brief": "short"}
SPAWN = {"tool": "spawn", "args": ARGS}
TEXT = json.dumps(SPAWN)
FUNCTION = {"name": "spawn", "arguments": json.dumps(ARGS)}


@pytest.mark.parametrize(
    "said",
    [
        SPAWN,
        TEXT,
        f"```json\n{TEXT}\n```",
        f"I think two will do: {{not json}} so\n\n{TEXT}\n\nThat is my call {{:",
        f"{TEXT} and again {TEXT}",
        {"name": "spawn", "arguments": ARGS},
        FUNCTION,
        json.dumps(FUNCTION),
        {"id": "call_1", "type": "function", "function": FUNCTION},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": FUNCTION}]},
        {"role": "assistant", "content": f"so: {TEXT}"},
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"type": "tool_use", "id": "toolu_1", "name": "spawn", "input": ARGS},
        {"tool": "functions.spawn", "parameters": ARGS},
        {"tool": "spawn", **ARGS},
        "{'tool': 'spawn', 'args': {'role': 'searcher', 'count': 2, 'chunk': 'even', 'brief': 'short'}}",
        "{tool: 'spawn', args: {role: 'searcher', count: 2, chunk: 'even', brief: 'short',},}",
        TEXT.replace("2", '"2"'),
        TEXT.replace("2", "2.0"),
        TEXT.replace("2", '" +2 "'),
        TEXT.replace("spawn", "SPAWN")
        .replace("searcher", "Searcher")
        .replace("short", "Short ")
        .replace("role", "Role"),
        TEXT.replace('"even"', '"\\u0065v\\u0065n"'),
        f"[{TEXT}]",
        f"<think>\n{'{' * 300}</think>\n{TEXT}",
    ],
)
def test_understood(said):
    before = repr(said)
    assert understand(said, LEGAL, KNOWN) == SPAWN and repr(said) == before


@pytest.mark.parametrize(
    "said",
    [
        {"tool": "wait"},
        {"tool": "wait", "args": None},
        {"name": "wait", "arguments": ""},
        '{"tool": "wait", "args": {"for": null}}',
        {"tool": "Wait", "for": "ONE"},
    ],
)
def test_an_argument_with_one_legal_value_may_be_left_out(said):
    assert understand(said, LEGAL, KNOWN) == {"tool": "wait", "args": {"for": "one"}}


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"args": value}
    return {"tool": "spawn", **value}


LOOP: dict = {"tool": "spawn"}
LOOP["args"] = LOOP

REFUSED = [
    ("spawn", "there is no call in it; write one as"),
    ("", "there is no call"),
    ({}, "there is no call"),
    ("{}", "there is no call"),
    (None, "got None; a call is an object"),
    (7, "got 7; a call is an object"),
    (10**5000, "a whole number of more than 18 digits"),
    (b"{}", "got a bytes"),
    ([SPAWN], "got a list of 1; a call is an object"),
    (object(), "got a object"),
    (LOOP, "nested more than 12 deep"),
    (deep(20), "nested more than 12 deep"),
    ({"tool": "spawn", "args": {1: 2}}, "a key that is no string"),
    ({"tool": "spawn", "args": {"count": object()}}, "a object, allowed: objects, lists"),
    ({"tool": "spawn", "args": {"count": 10**5000}}, "an integer of more than 18 digits"),
    ({"tool": "spawn", "args": {"count": float("nan")}}, "nan is no finite number"),
    ({"tool": "\ud800", "args": {}}, "half a surrogate pair"),
    ({"tool": "spawn", "args": [1] * 20_000}, "more than 10,000 values"),
    ('{"tool": "spawn", "args": {"count": NaN}}', "NaN is no finite number"),
    ('{"tool": "spawn", "args": {"count": -Infinity}}', "-Infinity is no finite number"),
    ('{"tool": "spawn", "args": {"count": 1e999}}', "1e999 is no finite number"),
    ('{"tool": "spawn", "args": {"count": ' + "9" * 5000 + "}}", "an integer of 5,000 digits"),
    ('{"tool": "spawn", "tool": "stop"}', "the key 'tool' stands twice"),
    ('{"tool": "spawn", "args": {"count": 1, "count": 2}}', "the key 'count' stands twice"),
    ('{"tool": "stop", "args": "{\'a\': 1, \'a\': 2}"}', "the key 'a' stands twice"),
    ('{"tool": "\\ud800"}', "half a surrogate pair"),
    ('{"tool": "spawn", "args": ' + "[" * 50, "nested more than 12 deep"),
    (TEXT[:-1], "no call can be read: the text ends where a comma or } must stand, at character 94"),
    ('{"tool": }', "got '}' where a value must stand, at character 10"),
    ('{"tool": "spawn', "a string without its closing quote, at character 10"),
    ('{"tool" "spawn"}', "no colon after the key 'tool'"),
    ('{"tool": "st\\qop"}', "an unknown escape"),
    ("x" * 300_000, "300,000 characters, allowed: at most 200,000"),
    (f"{TEXT} or " + '{"tool": "stop"}', "got 2 different calls \\('spawn', 'stop'\\); a turn is one call"),
    ({"tool_calls": [{"function": FUNCTION}, {"function": {"name": "stop"}}]}, "got 2 different calls"),
    ({"tool": "spawn", "name": "stop"}, "got both 'tool' and 'name'"),
    ({"tool": "spawn", "args": {}, "arguments": {}}, "got both 'args' and 'arguments'"),
    ({"tool": "spawn", "args": [2]}, "args: got a list of 1, must be an object"),
    ({"tool": "spawn", "args": "2"}, "args: got 2, must be an object"),
    ({"tool": "spawn", "args": "{} {}"}, "text after the value"),
    ({"tool": "spwan"}, "there is no 'spwan', closest is spawn; allowed now: wait, spawn, despawn, stop"),
    ({"tool": "x" * 1000}, "there is no 'x+\\.\\.\\.; allowed now"),
    ({"tool": "aggregate", "args": {"rule": "best"}}, "tool: aggregate is not legal now; allowed now: wait, spawn"),
    ({"tool": "stop", "args": {"why": "done"}}, "stop has no argument 'why'; arguments: none"),
    (
        {"tool": "spawn", "args": ARGS | {"cuont": 2}},
        "spawn has no argument 'cuont', closest is count; arguments: role",
    ),
    ({"tool": "spawn", "args": ARGS | {"Count": 2}}, "spawn.count is given twice"),
    ({"tool": "spawn", "args": {"role": "searcher"}}, "spawn.count is missing; allowed now: 1, 2"),
    ({"tool": "spawn", "args": ARGS | {"count": 4}}, "spawn.count: 4 is not legal now; allowed now: 1, 2$"),
    ({"tool": "spawn", "args": ARGS | {"count": 9}}, "spawn.count: got 9, closest is 2; allowed now: 1, 2$"),
    ({"tool": "spawn", "args": ARGS | {"count": 1.5}}, "spawn.count: got 1.5"),
    ({"tool": "spawn", "args": ARGS | {"count": True}}, "spawn.count: got True; allowed"),
    ({"tool": "spawn", "args": ARGS | {"count": "٢"}}, "spawn.count: got '.u0662'"),
    ({"tool": "spawn", "args": ARGS | {"count": None}}, "spawn.count: got None"),
    ({"tool": "spawn", "args": ARGS | {"count": [2]}}, "spawn.count: got a list of 1"),
    ({"tool": "spawn", "args": ARGS | {"brief": "detaild"}}, "spawn.brief: got 'detaild', closest is detailed"),
    ({"tool": "despawn", "args": {"who": "searcher_2"}}, "despawn.who: got 'searcher_2', closest is searcher_"),
    ({"tool": "despawn", "args": {"who": "row_0"}}, "'row_0' is not legal now; allowed now: searcher_1, searcher_3"),
]


@pytest.mark.parametrize("said, why", REFUSED, ids=range(len(REFUSED)))
def test_refused(said, why):
    with pytest.raises(Refused, match=why) as refusal:
        understand(said, LEGAL, KNOWN)
    message = str(refusal.value)
    assert "\n" not in message and len(message) < 400 and message.isprintable() and message.isascii()


UNITS = ["{", "[", '{"', "{'", '{"a":', '{"a":[', "{a:{", "{'\"", '{"\\', "{a:1,", '{"x":"{\'', "{ ", '{"a":1}']
UNITS += ['{"tool":"stop"}', '"{', "}{", "{a:-", "{a:'\\n"]


@pytest.mark.parametrize("unit", UNITS)
def test_no_text_takes_long(unit):
    """Whatever is repeated to 100,000 characters: read or refused in well under a second of work."""
    began = time.process_time()
    for text in (unit * (100_000 // len(unit)), '{"a":[' + unit * (90_000 // len(unit))):
        try:
            understand(text, LEGAL, KNOWN)
        except Refused as refusal:
            assert len(str(refusal)) < 400
    assert time.process_time() - began < 2.0


def test_loose_values():
    """By hand: what strict JSON has no word for."""
    value = loosejson.value
    assert value("{a: [1, -2.5e1, 'it is', \"\\n\\u00e4\", True, null, None,],}") == {
        "a": [1, -25.0, "it is", "\nä", True, None, None]
    }
    assert value('"\\ud83d\\ude00"') == "😀" and value(" 007 ") == 7
    found, fault = loosejson.objects('a {"b": {"c": 1}} {d {"e": "}{"} }')
    assert found == [{"b": {"c": 1}}, {"e": "}{"}] and str(fault) == "no colon after the key 'd'" and fault.at == 21
    with pytest.raises(loosejson.Unreadable, match="text after"):
        value("1 2")


def test_any_text_is_played_or_refused():
    """5,000 spoilt texts: no other error; a refusal leaves every array of the state as it is and pays nothing."""
    env, rng, played, refused = text_env(max_refusals=10**6), random.Random(1), 0, 0
    env.reset(0)
    glue = [
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ":",
        ",",
        "\\",
        "\n",
        "\x00",
        "NaN",
        "1e999",
        "\ud800",
        "é",
        "```",
        "all",
        "-1",
    ]
    for n in range(5_000):
        text = json.dumps(choose(rng, env))
        for _ in range(rng.randint(0, 3)):
            a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
            kind = rng.randint(0, 5)
            text = [
                text[:a] + text[a + 1 :],
                text[:a] + rng.choice(glue) + text[a:],
                text[:a] + text[b:] if n % 7 == 0 else text[:a] + text[a:].swapcase(),
                text[:b] + text[a:] if n % 5 == 0 else text.replace('"', "'"),
                text[:a] + rng.choice(glue) * rng.randint(1, 20) + text[a:],
                rng.choice(glue) + text,
            ][kind]
        before, number, ticks = env._state, env._refused, int(env._state.tick)
        told, reward, done, info = env.step(text)
        if info["refused"]:
            refused += 1
            assert env._state is before and not done and reward == 0.0 and info["ticks"] == 0
            assert told.startswith("Refused: ") and env._refused == number + 1 == info["refused_calls"]
        else:
            played += 1
            assert int(env._state.tick) == ticks + info["ticks"] > ticks
        if done:
            env.reset(n)
    assert played > 500 and refused > 1000, (played, refused)


# Episodes -----------------------------------------------------------------------------------------------------------


def test_a_refusal_changes_nothing_and_too_many_are_a_wait():
    env, twin = text_env(max_refusals=2), text_env()
    env.reset(5)
    twin.reset(5)
    before = state_of(env)
    for n in (1, 2):
        told, reward, done, info = env.step("no")
        assert told.startswith("Refused: there is no call") and (reward, done) == (0.0, False)
        assert (info["refused_calls"], info["replaced_calls"], info["ticks"], info["refused"]) == (n, 0, 0, True)
        assert all((a == b).all() for a, b in zip(before, state_of(env), strict=True))
    told, reward, done, info = env.step("no")
    expected = twin.step({"tool": "wait"})
    assert told.startswith("Refused: there is no call") and "a wait was played instead" in told
    assert told.endswith(expected[0]) and (reward, done) == expected[1:3]
    assert (info["refused_calls"], info["replaced_calls"], info["ticks"], info["refused"]) == (3, 1, 1, True)
    assert all((a == b).all() for a, b in zip(state_of(env), state_of(twin), strict=True))
    assert env.step("no")[3]["replaced_calls"] == 1  # the row of refusals has begun anew
    assert env.step(STOP_NOW)[3]["refused_calls"] == 4
    never = text_env(max_refusals=0)
    never.reset(0)
    ends = [never.step("no")[2] for _ in range(40)]
    assert ends.index(True) == 39 and never._replaced == 40  # the horizon


def test_the_same_episode_as_gymnasiums():
    """Same seed, same calls: rewards, flags, ticks and infos, and the numbers of the prompt against the features."""
    env, view, rng = text_env(), gymnasium.make("ddpomdp:ddpomdp/Search-v0", **OPTIONS).unwrapped, random.Random(2)
    steps, children, rows = 0, 0, 0
    for seed in range(6):
        env.reset(seed)
        view.reset(seed=seed)
        done, opening = False, [SPAWN_ALL, WAIT_ALL, MERGE] if seed % 2 else []
        while not done:
            names = env._seen.names
            # Half of the episodes begin sensibly, so that tables fill.
            call = opening.pop(0) if opening else choose(rng, env, stop=0.1)
            turn = env.env.harness.from_json(call, names)
            told, reward, done, info = env.step(call)
            seen, theirs, terminated, truncated, expected = view.step(env.env.harness.menu_index[tuple(turn.tolist())])
            assert (reward, info["terminated"], info["truncated"]) == (theirs, terminated, truncated)
            assert done == (terminated or truncated)
            expected.pop("masked_calls")
            assert {name: info[name] for name in expected} == expected
            steps += 1
            row = dict(zip(view.feature_names, seen["observation"].tolist(), strict=True))
            if done:
                assert f"Quality {info['quality']:.4f}" in told
                continue
            seconds = round(60 * row["clock_min"])
            assert told.startswith(f"Clock {seconds // 60} min {seconds % 60:02d} s. Tokens spent: "
                                   f"{round(1000 * row['spent_kilotokens']):,} (")  # fmt: skip
            for state in ("idle", "unread", "running"):
                listed = sum(row[f"roster_{r}.{state}"] == 1 for r in range(4))
                assert len(re.findall(rf"^- \w+_\d+: {state},", told, re.MULTILINE)) == listed
                children += listed
            for m in range(6):
                values = round(row[f"board_{m}.values"])
                line = re.search(rf"^- row {m}: (\d) values?, top (\d) ", told, re.MULTILINE)
                assert (line is not None) == (values > 0)
                if line:
                    assert line.groups() == (str(values), str(round(row[f"board_{m}.top_value_id"])))
                    rows += 1
    assert steps > 40 and children > 50 and rows > 20, (steps, children, rows)


def test_same_seed_same_bytes():
    def play(env, seed):
        rng = random.Random(3)
        told = [env.reset(seed), json.dumps(env.tools())]
        done = False
        while not done:
            text, _, done, _ = env.step(choose(rng, env, stop=0.05))
            told += [text, json.dumps(env.tools())]
        return "\0".join(told).encode()

    one, two = text_env(), text_env()
    first = play(one, 7)
    assert first == play(two, 7) == play(one, 7)
    assert first != play(two, 8)
    # Nothing of the hidden facts is told at the start: the first prompt is the same in every episode.
    assert len({one.reset(seed) for seed in range(5)}) == 1
    one.reset(7)
    unseeded = one.reset()
    two.reset(7)
    assert two.reset() == unseeded and one._seed == two._seed != 7


def test_a_sensible_episode_in_words():
    """By hand: three searchers, two rows each; what is told at each turn, and the end."""
    env = text_env(board_rows=2)
    told = env.reset(3)
    assert told == f"{env.system_prompt()}\n\n{env.prompt()}"
    assert "- wait (for: one)\n- spawn (role: searcher | checker; count: 1 | 2 | 3; chunk: 2 | even; brief:" in told
    told, _, _, info = env.step(SPAWN_ALL)
    assert "Children: 3: 0 idle and read, 0 returned and unread, 3 running." in told
    for n in (1, 2, 3):
        assert f"- searcher_{n}: running, 2 rows handed 0 min 00 s ago, brief detailed\n" in told
    assert "- handed out, no value yet: rows 0-5" in told and "Your last call, spawn: done." in told
    assert "- stop" not in told and "stop" not in {tool["function"]["name"] for tool in env.tools()}
    told, _, _, info = env.step(WAIT_ALL)
    assert info["ticks"] > 1 and "3 returned and unread, 0 running." in told and "You know no claims." in told
    told, _, _, info = env.step(MERGE)
    assert "Newest claims you know:\n- 0: row " in told and "more rows with a value, not listed" in told
    told, reward, done, info = env.step(STOP_NOW)
    assert done and info["terminated"] and info["stop_reason"] == 1 and info["quality"] > 0.3
    assert told == env.prompt() and told.startswith("The episode has ended: you stopped. Quality ")
    assert told.endswith(f"Your reward: {reward:.4f}.") and env.tools() == []
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step(STOP_NOW)
    env.reset(3)
    assert not env.step(STOP_NOW)[3]["refused"]


def test_out_of_order_and_bad_arguments():
    env = text_env()
    for call in (lambda: env.step(STOP_NOW), env.prompt, env.tools):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()
    for bad in (-1, 2**63, 1.5, "7", True):
        with pytest.raises(ValueError, match="seed: got"):
            env.reset(bad)
    with pytest.raises(ValueError, match="max_refusals: got -1"):
        text_env(max_refusals=-1)
    with pytest.raises(ValueError, match="board_rows: got 'all'"):
        text_env(board_rows="all")
    with pytest.raises(ValueError, match="unknown option of Search-v0 'max_tick'; did you mean max_ticks"):
        ddpomdp.text_env("Search-v0", max_tick=3)
    with pytest.raises(ValueError, match="unknown role 'manager'"):
        env.system_prompt("manager")


# Prompts ------------------------------------------------------------------------------------------------------------


def test_system_prompts():
    env = ddpomdp.text_env("Search-v0", preset="k2.5", topology="hierarchical", max_tokens=9_000)
    lead, searcher = env.system_prompt(), env.system_prompt("searcher")
    for said in (
        "You are the lead (lead_0)",
        "item-F1",
        "at most 101 agents alive",
        "1,500 turns",
        "9,000 tokens",
        "leads below the lead may spawn too, at most 2 levels",
        "siblings may message",
        "- spawn: ",
        "- stop: ",
    ):
        assert said in lead, said
    assert "- return: " not in lead and "- return: " in searcher and "You are a searcher" in searcher
    assert "- spawn: " not in searcher and "- stop: " not in searcher and "- search: " in searcher
    alone = ddpomdp.text_env("Search-v0", topology="single", reward="hybrid").system_prompt()
    assert "nobody can be spawned" in alone and "- spawn: " not in alone and "Your reward: " in alone


def test_a_long_table_is_kept_short():
    """By hand: 48 rows, 40 with a value, of which 2 conflict; at most five are listed, those in conflict among them."""
    env = ddpomdp.make("Search-v0")
    spec = env.spec
    own, board = np.zeros(len(spec.self_features)), np.zeros((48, len(spec.board_features)))
    at = spec.board_features.index
    board[:, at("handed")] = 1
    board[:40, at("values")], board[:40, at("top_origins")], board[:40, at("top_confidence")] = 1, 2, 0.5
    board[[30, 33], at("values")], board[33, at("accepts")] = 2, 3
    board[7, at("top_origins")] = 1
    own[spec.self_features.index("children_out")] = 1.2
    roster = np.zeros((8, len(spec.roster_features)))
    roster[:, spec.roster_features.index("running")] = 1
    names = [f"searcher_{n}" for n in range(1, 9)]
    nothing = np.zeros(len(spec.result_features)) - 1
    told = turn_prompt(env, Seen(own, nothing, np.zeros((4, 4)), roster, board, names, {"stop": {}}), board_rows=5)
    rows = re.findall(r"^- row (\d+): .*", told, re.MULTILINE)
    assert rows == ["0", "1", "7", "30", "33"]
    assert "- row 33: 2 values, top 0 (votes: 2 for it, 0 for the next; confidence 0.50; verdicts +3 -0)" in told
    assert "40 with a value, 2 of them with conflicting values, 8 handed out without a value yet" in told
    assert "- and 35 more rows with a value, not listed" in told and "rows 40-47" in told
    assert "Children: 12: 0 idle and read, 0 returned and unread, 12 running." in told
    assert "- and 4 more that are not listed" in told and told.endswith("You may call:\n- stop")


def test_names_and_grammar():
    roles = np.asarray([0, 1, 1, 2, 1, 0, -1])
    names = [life_name(uid, roles, ("lead", "searcher", "checker")) for uid in range(6)]
    assert names == ["lead_0", "searcher_1", "searcher_2", "checker_1", "searcher_3", "lead_1"]
    harness = ddpomdp.make("Search-v0", preset="tiny").harness
    # wait and message and despawn; to: children and the first two rows; two of three children idle
    calls = legal_calls(harness, 0b1001001, 0b011010, [3, 0, 0, 2, 0], ["searcher_2", "checker_1"])
    assert list(calls) == ["wait", "message", "despawn"] and calls["despawn"]["who"] == ("searcher_2", "checker_1")
    assert calls["message"]["to"] == ("children", "searcher_2", "checker_1")
    assert "row_0" in all_calls(harness)["despawn"]["who"] and harness.tools[STOP].name in all_calls(harness)


# The example --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    spec = importlib.util.spec_from_file_location("openai_client", ROOT / "docs/examples/openai_client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def orchestrator(body, number):
    """Spawn, wait, aggregate, stop, as a model would; its first and third answers cannot be read."""
    said = body["messages"][-1]["content"]
    may = {tool["function"]["name"] for tool in body["tools"]}
    if number == 0:
        return tool_call("spawn", '{"role": "searcher", "count": }', number)
    if number == 2:
        return {"role": "assistant", "content": "I will wait now."}
    if "You have no children" in said or number == 1:
        return tool_call("spawn", SPAWN_ALL["args"], number)
    if "aggregate" not in may:
        return {"role": "assistant", "content": "They are at work.\n```json\n" + json.dumps(WAIT_ALL) + "\n```"}
    if ": unread, " in said:
        return tool_call("aggregate", MERGE["args"], number)
    return tool_call("stop", {}, number)


def test_the_example_plays_an_episode(client, capsys):
    with endpoint(orchestrator) as (url, asked):
        info = client.play(text_env(), 3, url, "secret", "fake", timeout_s=20)
    assert info["done"] and info["quality"] > 0.3 and info["terminated"] and info["calls"] == len(asked) == 6
    assert info["refused_calls"] == 2 and info["replaced_calls"] == 0 and info["births"] == 3
    for body in asked:
        assert body["path"] == "/v1/chat/completions" and body["key"] == "Bearer secret" and body["model"] == "fake"
        assert body["messages"][0]["role"] == "system" and body["messages"][-1]["role"] == "user" and body["tools"]
        calls = {call["id"] for m in body["messages"] for call in m.get("tool_calls", ())}
        assert calls == {m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"}
    # The bad answer was told what was wrong with it, and the next one was right.
    assert asked[1]["messages"][-1]["content"].startswith("Refused: no call can be read: got '}' where a value must")
    assert "3 running." in asked[2]["messages"][-1]["content"]
    out = capsys.readouterr().out
    assert "The episode has ended: you stopped." in out and "6 requests, 2 answers refused" in out


def test_the_example_sends_the_newest_messages_only(client):
    with endpoint(lambda body, number: tool_call("wait", {"for": "one"}, number)) as (url, asked):
        info = client.play(text_env(), 3, url, "", "fake", timeout_s=20, max_calls=20)
    assert info["calls"] == 20 and not info["done"] and asked[0]["key"] is None
    assert max(len(body["messages"]) for body in asked) <= 1 + client.KEPT < 3 * 20
    assert all(body["messages"][1]["role"] == "user" for body in asked)


@pytest.mark.parametrize(
    "answer, status, said",
    [
        (b'{"error": "no such\\nmodel"}', 404, "status 404 Not Found: .*no such"),
        (b"busy", 503, "status 503 Service Unavailable: 'busy'"),
        (b"<html>", 200, "the answer has no choices.0..message: '<html>'"),
        (b'{"choices": []}', 200, "has no choices"),
        (b"[" * 100_000, 200, "has no choices"),
        ({"role": "assistant"}, 200, None),
    ],
)
def test_faults_of_the_endpoint_are_one_line(client, capsys, answer, status, said):
    with endpoint(lambda body, number: answer, status) as (url, _):
        if said is None:
            assert client.chat(url, "", {}, 20) == answer
            return
        with pytest.raises(client.EndpointError, match=said) as error:
            client.chat(url, "", {}, 20)
    assert "\n" not in str(error.value)


def test_no_endpoint(client, capsys, monkeypatch):
    slow = endpoint(lambda body, number: {}, delay_s=1.0)
    with slow as (url, _), pytest.raises(client.EndpointError, match=r"no answer within 0.1 s"):
        client.chat(url, "", {}, 0.1)
    with pytest.raises(client.EndpointError, match="refused"):
        client.chat(url, "", {}, 5)
    with pytest.raises(client.EndpointError, match="http://nowhere:port"):
        client.chat("http://nowhere:port", "", {}, 5)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(SystemExit) as left:
        client.main([])
    assert left.value.code == 2 and "--base-url" in capsys.readouterr().err
    assert client.main(["--base-url", url, "--preset", "tinny"]) == 2
    assert capsys.readouterr().err.startswith("openai_client: unknown preset 'tinny'; did you mean tiny")
