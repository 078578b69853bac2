"""Transcripts of other systems as traces: small files made here by hand, and the real ones where they are."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_trace import SHARED

from ddpomdp import cli
from ddpomdp.trace import Trace, TraceError, import_all, import_file, metrics, plot, salvage, to_networkx, validate
from ddpomdp.trace.importers import detect
from ddpomdp.trace.importers.parents import forest, nearest

SESSION = "11111111-aaaa-bbbb-cccc-000000000001"


def sound(imported):
    """A valid trace under the survey's schema, from which everything else works; its events by id."""
    text = imported.trace.to_json()
    assert [p for p in validate(text) if p.level == "error"] == []
    again = Trace.from_json(text)
    assert again.to_json() == text and again.head is None
    assert metrics(again) and to_networkx(again).number_of_nodes() == len(again.events)
    assert imported.records_in == imported.records_kept + len(imported.left_out) + imported.counts["repeated"]
    reached, edges = {"e0"}, [(edge["src"], edge["dst"]) for edge in again.edges]
    while grown := {b for a, b in edges if a in reached and b not in reached}:
        reached |= grown
    assert reached == {event["id"] for event in again.events}
    return {event["id"]: event for event in again.events}


def edges_of(imported, kind):
    return {(edge["src"], edge["dst"]) for edge in imported.trace.edges if edge["type"] == kind}


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


# Who&When -----------------------------------------------------------------------------------------------------------


def log(**changed):
    history = [
        {"role": "human", "content": "How many?"},
        {"role": "Orchestrator (thought)", "content": "plan"},
        {"role": "Orchestrator (-> WebSurfer)", "content": "look it up"},
        {"role": "WebSurfer", "content": "seven"},
        {"role": "Orchestrator (termination condition)", "content": "7"},
    ]
    labels = {"mistake_agent": "WebSurfer", "mistake_step": "3", "mistake_reason": "It is eight."}
    return {"history": history, "question_ID": "q1", "is_corrected": False, "ground_truth": "8", **labels} | changed


def test_who_and_when(tmp_path):
    file = tmp_path / "handcrafted_1.json"
    file.write_text(json.dumps(log()))
    found = import_file(file)
    events = sound(found)
    assert [(e["agent"], e["type"], e.get("to"), e["t"]) for e in events.values()] == [
        ("env", "orchestrator_decision", None, 0),
        ("human", "human_intervention", None, 0),
        ("Orchestrator", "orchestrator_decision", None, 1),
        ("Orchestrator", "message", "WebSurfer", 2),
        ("WebSurfer", "return", "Orchestrator", 3),
        ("Orchestrator", "orchestrator_decision", None, 4),
    ]
    assert events["s1"]["decision"] == "thought" and events["s4"]["decision"] == "stop"
    assert events["s3"]["mistake"] is True and events["s3"]["mistake_reason"] == "It is eight."
    assert [name for name, event in events.items() if "mistake" in event] == ["s3"]
    told = events["e0"]["import"]
    assert told["labels"] == {"agent": "WebSurfer", "step": 3, "reason": "It is eight."} and told["clock"] == "steps"
    assert edges_of(found, "message") == {("s2", "s3")} and edges_of(found, "return") == {("s3", "s4")}
    assert edges_of(found, "temporal") == {("s1", "s2"), ("s2", "s4")} and found.problems == []
    assert found.trace.document["metrics"] == {"task_success": 0.0} and found.trace.document["task_id"] == "q1"
    assert "seven" not in found.trace.to_json()  # texts are references


@pytest.mark.parametrize("step", ["5", 5, "-1", "three", 1.0, True, [3], "٣", "9" * 30])
def test_a_step_that_is_none_is_named_by_file_and_field(tmp_path, capsys, step):
    file, out = tmp_path / "algorithm_9.json", tmp_path / "out.json"
    file.write_text(json.dumps(log(mistake_step=step)))
    found = import_file(file)
    sound(found)
    assert [p.path for p in found.problems] == ["mistake_step", "mistake_agent"][:1]
    assert found.problems[0].reason.endswith("allowed: 0 to 4, a message of the history")
    assert found.trace.events[0]["import"]["labels"]["step"] is None
    with pytest.raises(TraceError, match=r"algorithm_9\.json: got"):
        import_file(file, strict=True)
    assert cli.main(["trace", "import", str(file), "--out", str(out), "--strict"]) == 2
    said = capsys.readouterr().err
    assert "mistake_step" in said and "algorithm_9.json" in said and said.count("\n") == 1 and not out.exists()


def test_who_and_when_damaged(tmp_path):
    history = [
        *log()["history"][:3],
        7,
        {"role": "x"},
        {"content": "no speaker"},
        {"role": "B", "name": "A", "content": ""},
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps(log(history=history, mistake_step="6", mistake_agent="B", is_correct="True")))
    found = import_file(file)
    events = sound(found)
    assert found.left_out == [("history", 3), ("history", 4), ("history", 5)] and found.records_kept == 4
    assert events["s6"]["agent"] == "A" and events["s6"]["mistake"] is True  # steps keep their numbers
    assert [p.path for p in found.problems if p.level == "warning"] == ["mistake_agent"]
    assert found.trace.document["metrics"] == {"task_success": 1.0}


def test_the_real_logs():
    files = sorted((SHARED / "whowhen").glob("*.json"))
    if not files:
        pytest.skip("the Who&When files are not on this machine")
    labelled = 0
    for file in files:
        found = import_file(file)
        sound(found)
        assert found.left_out == [] and found.records_kept == len(json.loads(file.read_text())["history"])
        labelled += sum("mistake" in event for event in found.trace.events)
    assert labelled == len(files) > 0


# Claude Code --------------------------------------------------------------------------------------------------------


def record(uuid, parent, second, content, *, role="assistant", session=SESSION, **more):
    message = {"role": role, "content": content}
    if role == "assistant":
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100}
        message |= {"id": more.pop("message", f"msg_{uuid}"), "usage": more.pop("usage", usage)}
    stamp = f"2026-03-01T10:{second // 60:02d}:{second % 60:02d}.000Z"
    return {"uuid": uuid, "parentUuid": parent, "sessionId": session, "timestamp": stamp, "type": role,
            "isSidechain": False, "message": message} | more  # fmt: skip


def use(name, id, **given):
    return [{"type": "tool_use", "id": id, "name": name, "input": given}]


def result(id, text="ok", **more):
    return [{"type": "tool_result", "tool_use_id": id, "content": text, **more}]


def text(said):
    return [{"type": "text", "text": said}]


def main_thread(session=SESSION):
    kind = {"session": session}
    return [
        {"type": "summary", "summary": "counting", "leafUuid": "u9"},
        record("u1", None, 0, "count the files", role="user", **kind),
        record("u2", "u1", 2, use("Task", "call_a", prompt="count left", description="x"), message="m1", **kind),
        record("u3", "u2", 2, use("Agent", "call_b", prompt="count right"), message="m1", **kind),
        record("u4", "u3", 20, result("call_a"), role="user", toolUseResult={"agentId": "aa11"}, **kind),
        record("u5", "u4", 21, result("call_b", is_error=True), role="user", **kind),
        record("u6", "u5", 25, text("seven in all"), **kind),
    ]


def side(agent, prompt, start, session=SESSION, inner=None):
    kind = {"session": session, "agentId": agent, "isSidechain": True}
    n = f"{agent}_"
    inner = inner or use("Bash", f"bash_{agent}", command="ls")
    id = inner[0]["id"]
    return [
        record(f"{n}1", None, start, prompt, role="user", **kind),
        record(f"{n}2", f"{n}1", start + 1, inner, **kind),
        record(f"{n}3", f"{n}2", start + 3, result(id), role="user", **kind),
        record(f"{n}4", f"{n}3", start + 5, text(f"{prompt}: three"), **kind),
    ]


def session_on_disk(folder, session=SESSION):
    main = write_lines(folder / f"{session}.jsonl", main_thread(session))
    write_lines(folder / session / "subagents" / "agent-aa11.jsonl", side("aa11", "count left", 3, session))
    write_lines(folder / session / "subagents" / "agent-bb22.jsonl", side("bb22", "count right", 4, session))
    return main


def test_claude_code_with_sub_agents(tmp_path):
    """By hand: one child found by the agent id in the result, the other by its prompt."""
    found = import_file(session_on_disk(tmp_path))
    events = sound(found)
    assert found.problems == [] and (found.records_in, found.records_kept) == (15, 15)
    document = found.trace.document
    assert document["task_id"] == SESSION and document["topology"] == "swarm"
    assert {(e["agent"], e["type"]) for e in events.values() if e["agent"] != "env"} == {
        ("human", "human_intervention"), ("main", "spawn"), ("main", "tool_result"), ("main", "aggregate"),
        ("agent_aa11", "tool_call"), ("agent_aa11", "tool_result"), ("agent_aa11", "return"),
        ("agent_bb22", "tool_call"), ("agent_bb22", "tool_result"), ("agent_bb22", "return"),
    }  # fmt: skip
    assert (events["c:call_a"]["to"], events["c:call_b"]["to"]) == ("agent_aa11", "agent_bb22")
    assert events["c:call_a"]["t"] == 2 and events["c:bash_aa11"]["t"] == 4 and events["r:call_b"]["is_error"] is True
    assert edges_of(found, "spawn") == {("c:call_a", "c:bash_aa11"), ("c:call_b", "c:bash_bb22")}
    assert edges_of(found, "return") == {("m:aa11_4:0", "r:call_a"), ("m:bb22_4:0", "r:call_b")}
    assert edges_of(found, "aggregate") == {("m:aa11_4:0", "m:u6:0"), ("m:bb22_4:0", "m:u6:0")}
    assert len(edges_of(found, "tool_dependency")) == 4
    # u2 and u3 tell the same message: its usage counts once. 1 + 1 + 2 * 2 messages of 15 tokens.
    assert document["costs"] == {"tokens": 90, "cache_read_tokens": 600, "wall_clock_s": 25, "sub_agents": 2,
                                 "tool_calls": 2, "messages": 0}  # fmt: skip
    values = {name: measure.value for name, measure in metrics(found.trace).items()}
    assert values["unread_returns"] == 0 and values["useful_agent_utilisation"] == 1


def test_the_order_of_records_plays_no_part(tmp_path):
    records = [*main_thread(), *side("aa11", "count left", 3), *side("bb22", "count right", 4)]
    records += [record("x1", "never", 9, text("lost"))]
    texts = set()
    for seed in range(100):
        random.Random(seed).shuffle(records)
        texts.add(import_file(write_lines(tmp_path / f"{SESSION}.jsonl", records)).trace.to_json())
    assert len(texts) == 1


def test_nested_and_inline_sub_agents(tmp_path):
    """A sub-agent that spawns another; and an older file, whose side chains have no agent id."""
    inner = use("Task", "call_c", prompt="count deep")
    deep = [r | {"toolUseResult": {"agentId": "cc33"}} if r["uuid"] == "aa11_3" else r
            for r in side("aa11", "count left", 3, inner=inner)]  # fmt: skip
    found = import_file(write_lines(tmp_path / "a.jsonl", [*main_thread(), *deep, *side("cc33", "count deep", 4)]))
    events = sound(found)
    assert found.trace.document["topology"] == "hierarchical" and events["c:call_c"]["to"] == "agent_cc33"
    assert ("c:call_c", "c:bash_cc33") in edges_of(found, "spawn") and events["m:cc33_4:0"]["to"] == "agent_aa11"
    assert ("m:aa11_4:0", "m:u6:0") in edges_of(found, "aggregate")

    inline = [{k: v for k, v in r.items() if k != "agentId"} for r in side("aa11", "count right", 3)]
    found = import_file(write_lines(tmp_path / "b.jsonl", [*main_thread(), *inline]))
    events = sound(found)
    assert events["c:call_b"]["to"] == "sidechain_aa11_1" == events["m:aa11_4:0"]["agent"]


def test_sessions_that_share_an_agent_id_are_kept_apart(tmp_path):
    other = SESSION[:-1] + "2"
    session_on_disk(tmp_path / "apart", SESSION)
    session_on_disk(tmp_path / "apart", other)
    one = [*main_thread(), *side("aa11", "count left", 3)]
    both = write_lines(
        tmp_path / "both" / "b.jsonl", [*one, *main_thread(other), *side("aa11", "count left", 3, other)]
    )
    for path, agents in ((tmp_path / "apart", 4), (both, 3)):
        teams = list(import_all(path))
        assert [team.trace.document["task_id"] for team in teams] == [SESSION, other]
        assert [len({e["agent"] for e in sound(t).values()} - {"env"}) for t in teams] == [agents] * 2
    with pytest.raises(TraceError, match="more than one team"):
        import_file(tmp_path / "both" / "b.jsonl")


def test_agent_files_beside_the_session(tmp_path):
    """An older layout: agent-*.jsonl in the same folder, which repeat the parent's session id."""
    main = write_lines(tmp_path / f"{SESSION}.jsonl", main_thread())
    write_lines(tmp_path / "agent-aa11.jsonl", side("aa11", "count left", 3))
    write_lines(tmp_path / "agent-zz.jsonl", side("zz", "count left", 3, session="another"))
    found = import_file(main)
    assert {e["agent"] for e in found.trace.events} == {"env", "human", "main", "agent_aa11"}
    teams = {team.trace.document["task_id"]: team for team in import_all(tmp_path)}
    assert set(teams) == {SESSION, "another"} and teams[SESSION].trace.to_json() == found.trace.to_json()


def test_parents_that_do_not_exist_and_cycles(tmp_path):
    records = [*main_thread(), record("d1", "gone1", 30, text("a")), record("d2", "gone2", 31, text("b")),
               record("d3", "gone1", 32, text("c")), record("s1", "s1", 33, text("self")),
               record("c1", "c2", 34, text("one")), record("c2", "c1", 35, text("two")),
               record("u6", "u5", 25, text("seven in all"))]  # fmt: skip
    found = import_file(write_lines(tmp_path / "a.jsonl", records))
    sound(found)
    assert found.counts == {"repeated": 1, "dangling": 3, "cycles": 2}
    assert {("e0", f"m:{name}:0") for name in ("d1", "d2", "d3", "s1", "c1")} <= edges_of(found, "causal")
    assert ("m:c1:0", "m:c2:0") in edges_of(found, "temporal")
    said = [p.reason for p in found.problems if "hangs from" in p.reason]
    assert len(said) == 3 and "which was never written; put under the root" in said[0]
    assert all(p.level == "warning" for p in found.problems)


def test_a_chain_of_100_000_is_no_trouble(tmp_path):
    began = time.process_time()
    n = 100_000
    chain = {i: i - 1 if i else None for i in range(n)}
    parents, dangling, cut = forest(chain | {n: n + 1, n + 1: n}, {i: i for i in range(n + 2)})
    assert (dangling, cut) == ([], [n]) and parents[n] is None and parents[n + 1] == n
    above = nearest(parents, {0: True, n: True})
    assert above[n - 1] == 0 and above[0] is None and above[n + 1] == n
    assert time.process_time() - began < 3
    links = [record(f"r{i:05d}", f"r{i - 1:05d}" if i else None, i // 10, text("x")) for i in range(5_000)]
    found = import_file(write_lines(tmp_path / "deep.jsonl", reversed(links)))
    assert len(found.trace.events) == 5_001 and len(edges_of(found, "temporal")) == 4_999


BAD_LINES = [
    ("2748 610", "after the end"),
    ('{"uuid": NaN}', "NaN is not JSON"),
    ('{"uuid": 1e999}', "too large"),
    ('{"uuid": "a", "uuid": "b"}', "stands twice"),
    ('{"uuid": "\\ud800"}', "surrogate"),
    ("[" * 100_000, "nested more than 64 deep"),
    ('{"uuid": ' + "9" * 5_000 + "}", "digits"),
    ("\ufeff{}", "byte-order mark"),
    ('"a text"', "is no object"),
    ('{"half": ', "unfinished"),
    (record("z", None, 1, [], timestamp="yesterday"), "got \"yesterday\"; allowed: a date and time"),
    (record("z", None, 1, 7), "message.content"),
    (record("z", 4, 1, ""), "parentUuid"),
    (record(None, None, 1, ""), "uuid"),
    (record("z", None, 1, "") | {"message": None}, "message"),
]  # fmt: skip


@pytest.mark.parametrize("line, why", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_listed_or_refused(tmp_path, capsys, line, why):
    lines = main_thread()
    lines.insert(3, line)
    file, out = write_lines(tmp_path / "t.jsonl", lines), tmp_path / "out.json"
    found = import_file(file)
    events = sound(found)
    assert found.left_out == [(str(file), 4)] and found.records_in == 8 and "c:call_b" in events
    problem = next(p for p in found.problems if p.record)
    assert problem.line == 4 and problem.column and why in f"{problem.path}: {problem.reason}"
    assert cli.main(["trace", "import", str(file), "--out", str(out), "--strict"]) == 2
    said = capsys.readouterr().err
    assert "line 4" in said and said.count("\n") == 1 and "Traceback" not in said and not out.exists()
    assert cli.main(["trace", "import", str(file), "--out", str(out)]) == 0
    assert "left out 1" in capsys.readouterr().out and Trace.load(out).to_json() == found.trace.to_json()


def test_ten_thousand_lines_one_malformed(tmp_path):
    lines = [record(f"r{i}", f"r{i - 1}" if i else None, i % 3600, text(str(i))) for i in range(10_000)]
    lines[12] = "2748 610"
    file = write_lines(tmp_path / "t.jsonl", lines)
    found = import_file(file)
    assert (found.records_in, found.records_kept, found.left_out) == (10_000, 9_999, [(str(file), 13)])
    assert found.counts["dangling"] == 1  # the record after the malformed one
    with pytest.raises(TraceError, match="line 13"):
        import_file(file, strict=True)


def test_an_unfinished_session_is_flagged(tmp_path):
    found = import_file(write_lines(tmp_path / "t.jsonl", main_thread()[:-2]))
    sound(found)
    assert [p.reason for p in found.problems] == ['the call "call_b" of "main" has no result: unfinished']
    found = import_file(write_lines(tmp_path / "t.jsonl", [*main_thread(), *side("dd", "who asked?", 9)]))
    assert any("no call is known to have spawned" in p.reason for p in found.problems)
    first = next(e for e in found.trace.events if e["agent"] == "agent_dd")["id"]
    assert ("e0", first) in edges_of(found, "causal")


def test_a_folder_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session_on_disk(tmp_path / "in", SESSION)
    session_on_disk(tmp_path / "in" / "deeper", SESSION[:-1] + "2")
    out = tmp_path / "out"
    out.mkdir()
    assert cli.main(["trace", "import", "in", "--out", "out", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [team["records_in"] for team in told] == [15, 15] and len(list(out.iterdir())) == 2
    assert all(Trace.load(file).events for file in out.iterdir())
    assert cli.main(["trace", "import", "in", "--out", "one.json"]) == 2
    assert "more than one team" in capsys.readouterr().err and not Path("one.json").exists()
    write_lines(tmp_path / "in" / "deeper" / "zz.jsonl", [*main_thread("zz"), "broken"])
    for file in out.iterdir():
        file.unlink()
    assert cli.main(["trace", "import", "in", "--out", "out", "--strict"]) == 2
    assert list(out.iterdir()) == []  # the sound ones neither
    assert cli.main(["trace", "import", str(tmp_path / "none"), "--out", "o.json"]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["trace", "import", "empty", "--out", "o.json"]) == 2
    assert all(line.startswith("ddpomdp: ") for line in capsys.readouterr().err.splitlines())


@pytest.mark.slow
def test_a_thousand_sessions_of_650_mb_fit_in_memory(tmp_path):
    """Sub-agents are no sessions of their own, two unfinished ones are flagged, memory stays small."""
    for n in range(1_000):
        name = f"s{n:04d}"
        thread = main_thread(name)[:-2] if n in (3, 77) else main_thread(name)
        filler = [record(f"p{i}", "u1", 30 + i, text("x" * 6_000 + str(i)), session=name) for i in range(104)]
        write_lines(tmp_path / f"{name}.jsonl", [*thread, *filler])
        write_lines(tmp_path / name / "subagents" / "agent-aa11.jsonl", side("aa11", "count left", 3, name))
    code = (
        "import resource, sys; from ddpomdp.trace import import_all\n"
        "teams = unfinished = 0\n"
        "for team in import_all(sys.argv[1]):\n"
        "    teams += 1; unfinished += any('unfinished' in p.reason for p in team.problems)\n"
        "    assert team.records_in == team.records_kept and team.trace.document['costs']['sub_agents'] == 1\n"
        "print(teams, unfinished, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    teams, unfinished, megabytes = map(int, done.stdout.split())
    assert (teams, unfinished) == (1_000, 2) and megabytes < 1_000, done.stdout


# OpenTelemetry ------------------------------------------------------------------------------------------------------


def otlp(id, parent, start, end, operation="", **attributes):
    attributes = {key.replace("__", "."): value for key, value in attributes.items()}
    attributes |= {"gen_ai.operation.name": operation} if operation else {}
    kinds = {int: "intValue", str: "stringValue"}
    told = [{"key": k, "value": {kinds[type(v)]: str(v)}} for k, v in attributes.items()]
    return {"traceId": "t1", "spanId": id, "parentSpanId": parent, "name": f"span {id}", "attributes": told,
            "startTimeUnixNano": str(start * 10**9), "endTimeUnixNano": str(end * 10**9)}  # fmt: skip


def batch(spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


def spans():
    """A root that calls a searcher twice, once through a tool; the searcher uses a tool of its own."""
    return [
        otlp("a", "", 0, 20, "invoke_agent", gen_ai__agent__name="planner", gen_ai__agent__id="p1"),
        otlp("b", "a", 1, 2, "chat", gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=20),
        otlp("c", "a", 3, 9, "execute_tool", gen_ai__tool__name="ask"),
        otlp("d", "c", 4, 8, "invoke_agent", gen_ai__agent__name="searcher", gen_ai__agent__id="s1"),
        otlp("h", "d", 4, 7, http__method="GET"),
        otlp("e", "h", 5, 6, "execute_tool", gen_ai__tool__name="web", gen_ai__tool__call__arguments='{"q": 1}'),
        otlp("f", "a", 10, 15, "invoke_agent", gen_ai__agent__name="searcher", gen_ai__agent__id="s1"),
        otlp("g", "f", 11, 12, openinference__span__kind="LLM", llm__token_count__prompt=7),
        otlp("i", "a", 16, 17, "chat"),
    ]


def test_spans(tmp_path):
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(batch(spans()), indent=1))
    found = import_file(file)
    events = sound(found)
    assert found.problems == [] and found.records_in == found.records_kept == 9
    assert {name: (e["agent"], e["type"], e["t"]) for name, e in events.items() if name != "e0"} == {
        "s:a": ("planner", "orchestrator_decision", 0), "s:a:end": ("planner", "orchestrator_decision", 20),
        "s:b": ("planner", "orchestrator_decision", 1),
        "s:c": ("planner", "tool_call", 3), "s:c:result": ("planner", "tool_result", 9),
        "s:d": ("planner", "spawn", 4), "s:d:end": ("searcher", "return", 8),
        "s:e": ("searcher", "tool_call", 5), "s:e:result": ("searcher", "tool_result", 6),
        "s:f": ("planner", "orchestrator_decision", 10), "s:f:end": ("searcher", "return", 15),
        "s:g": ("searcher", "orchestrator_decision", 11), "s:i": ("planner", "orchestrator_decision", 16),
    }  # fmt: skip
    assert (
        events["s:f"]["decision"] == "delegate" and events["s:d"]["to"] == "searcher" and events["s:e"]["tool"] == "web"
    )
    assert edges_of(found, "spawn") == {("s:d", "s:e")}
    assert edges_of(found, "return") == {("s:d:end", "s:c:result"), ("s:f:end", "s:i")}
    assert ("s:f", "s:g") in edges_of(found, "causal")
    assert found.trace.document["costs"] == {"tokens": 127, "wall_clock_s": 20, "sub_agents": 1, "tool_calls": 2,
                                             "messages": 0}  # fmt: skip
    assert found.trace.document["topology"] == "swarm"


def test_the_order_and_the_spelling_of_spans_play_no_part(tmp_path):
    texts, given = set(), spans()
    for seed in range(100):
        random.Random(seed).shuffle(given)
        file = tmp_path / "spans.jsonl"
        half = [batch(given[:4]), batch(given[4:])]
        texts.add(import_file(write_lines(file, half)).trace.fingerprint)
    stamp = lambda nanos: f"1970-01-01T00:00:{int(nanos) // 10**9:02d}Z"  # noqa: E731
    sdk = [
        {
            "name": span["name"],
            "context": {"trace_id": "0xt1", "span_id": f"0x{span['spanId']}"},
            "parent_id": f"0x{span['parentSpanId']}" if span["parentSpanId"] else None,
            "start_time": stamp(span["startTimeUnixNano"]),
            "end_time": stamp(span["endTimeUnixNano"]),
            "attributes": {
                a["key"]: int(v) if "intValue" in a["value"] else v
                for a in span["attributes"]
                for v in a["value"].values()
            },
        }
        for span in given
    ]
    for name, value in (("sdk.json", sdk), ("spans.json", batch(given))):
        (tmp_path / name).write_text(json.dumps(value))
        document = import_file(tmp_path / name).trace
        head = document.document["events"][0]["import"]
        head["source"] = "spans.jsonl"
        texts.add(document.fingerprint)
    texts.add(import_file(write_lines(tmp_path / "sdk.jsonl", sdk)).trace.document["trace_id"])
    assert len(texts) == 2  # one fingerprint; and the trace id, which the source's name is no part of
    assert import_file(tmp_path / "sdk.json").trace.document["trace_id"] in texts


def test_links_are_no_parents_and_lost_parents_are_counted(tmp_path):
    given = spans()
    given[0]["links"] = [{"traceId": "t1", "spanId": "e"}]  # closes a loop, were it a parent
    given[1]["links"] = [{"traceId": "t2", "spanId": "x"}]
    given += [otlp("l1", "l2", 5, 6, "chat"), otlp("l2", "l1", 5, 6, "chat"), otlp("l3", "l3", 5, 6, "chat")]
    given += [otlp("m", "missing", 5, 6, "execute_tool", gen_ai__tool__name="lost")]
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(batch(given)))
    found = import_file(file)
    events = sound(found)
    assert found.counts == {"repeated": 0, "dangling": 1, "cycles": 2, "links": 2}
    assert events["s:m"]["agent"] == "unknown" and ("e0", "s:m") in edges_of(found, "causal")
    assert [e["agent"] for e in events.values() if e["id"] in ("s:b", "s:e")] == ["planner", "searcher"]

    rng, removed = random.Random(0), spans() * 1
    kept = [span for span in removed if span["spanId"] == "a" or rng.random() < 0.7]
    file.write_text(json.dumps(batch(kept)))
    found = import_file(file)
    sound(found)
    assert len(kept) < 9 and found.records_in == found.records_kept == len(kept) and found.counts["dangling"] > 0


def test_cut_attributes_are_kept_and_marked(tmp_path):
    cut = '{"q": "' + "x" * 1021  # cut at 1,028 characters
    given = spans()
    given[5] = otlp("e", "h", 5, 6, "execute_tool", gen_ai__tool__name="web", gen_ai__tool__call__arguments=cut)
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(batch(given)))
    events = sound(import_file(file))
    assert events["s:e"]["cut"] == ["gen_ai.tool.call.arguments"] and events["s:e"]["content_ref"].startswith("sha256:")
    assert [name for name, event in events.items() if "cut" in event] == ["s:e"]


def test_damaged_spans(tmp_path, capsys):
    good = spans()
    bad = [
        good[1] | {"startTimeUnixNano": "soon", "spanId": "x1"},
        good[1] | {"spanId": 7},
        good[1] | {"parentSpanId": 7, "spanId": "x2"},
        {"traceId": 4},
        "span",
    ]
    file, out = tmp_path / "spans.json", tmp_path / "o.json"
    file.write_text(json.dumps(batch([*good, *bad, good[1]])))
    found = import_file(file)
    sound(found)
    assert len(found.left_out) == 5 and found.records_in == 15 and found.counts["repeated"] == 1
    paths = [p.path for p in found.problems]
    assert "resourceSpans[0].scopeSpans[0].spans[9].startTimeUnixNano" in paths
    assert cli.main(["trace", "import", str(file), "--out", str(out), "--strict"]) == 2
    assert "spans[12]" in capsys.readouterr().err and not out.exists()
    file.write_text('{"resourceSpans": [')
    assert cli.main(["trace", "import", str(file), "--out", str(out), "--format", "otel"]) == 2
    assert "line 1, column 20" in capsys.readouterr().err
    file.write_text('{"resourceSpans": []}')
    assert cli.main(["trace", "import", str(file), "--out", str(out)]) == 2
    assert "there are no spans in it" in capsys.readouterr().err


def test_several_traces_in_a_file(tmp_path):
    other = [span | {"traceId": "t2"} for span in spans()[:3]]
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(batch([*spans(), *other])))
    assert [team.trace.document["task_id"] for team in import_all(file)] == ["t1", "t2"]
    with pytest.raises(TraceError, match="more than one team"):
        import_file(file)


# ATIF ---------------------------------------------------------------------------------------------------------------


def step(n, source, message="", at=None, calls=(), results=(), **more):
    told = {"step_id": n, "source": source, "message": message} | more
    told |= {} if at is None else {"timestamp": f"2026-03-01T10:00:{at:02d}Z"}
    told |= (
        {"tool_calls": [{"tool_call_id": c, "function_name": f, "arguments": {}} for c, f in calls]} if calls else {}
    )
    return told | ({"observation": {"results": list(results)}} if results else {})


def child(name="child-1", at=None):
    when = (lambda n: None) if at is None else (lambda n: at + n)
    metrics = {"prompt_tokens": 30, "completion_tokens": 3}
    return {"schema_version": "ATIF-v1.7", "trajectory_id": name, "agent": {"name": "worker"}, "steps": [
        step(1, "user", "count left", when(0)),
        step(2, "agent", "", when(1), [("w1", "bash")], [{"source_call_id": "w1", "content": "3"}], metrics=metrics),
        step(3, "agent", "three", when(2)),
    ]}  # fmt: skip


def trajectory(ref, at=(None,) * 5, **more):
    spawn = [{"source_call_id": "a", "content": "three", "subagent_trajectory_ref": ref}]
    return {"schema_version": "ATIF-v1.7", "session_id": "run", "agent": {"name": "boss", "version": "1"}, "steps": [
        step(1, "system", "be brief", at[0]),
        step(2, "user", "count", at[1]),
        step(3, "agent", "I ask.", at[2], [("a", "delegate")], spawn, metrics={"prompt_tokens": 50}),
        step(4, "agent", "three in all", at[4]),
    ]} | more  # fmt: skip


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("way", ["embedded", "file"])
def test_atif(tmp_path, timed, way):
    at = (0, 1, 2, None, 30) if timed else (None,) * 5
    inner = child(at=10 if timed else None)
    if way == "embedded":
        document = trajectory([{"trajectory_id": "child-1"}], at, subagent_trajectories=[inner])
    else:
        document = trajectory({"trajectory_path": "sub/child.json"}, at)
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "child.json").write_text(json.dumps(inner))
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(document, indent=1))
    assert detect(file) == "atif"
    found = import_file(file)
    events = sound(found)
    assert found.problems == [] and found.records_in == found.records_kept == 7
    assert {name: (e["agent"], e["type"], e["t"]) for name, e in events.items() if name != "e0"} == {
        "m:0:1": ("human", "human_intervention", 0),
        "m:0:2": ("boss", "orchestrator_decision", 1), "c:0:2:0": ("boss", "spawn", 1),
        "c:1:1:0": ("worker", "tool_call", 10 if timed else 3),
        "r:1:1:0": ("worker", "tool_result", 10 if timed else 3),
        "m:1:2": ("worker", "return", 11 if timed else 4),
        "r:0:2:0": ("boss", "tool_result", 11 if timed else 4), "m:0:3": ("boss", "aggregate", 29 if timed else 5),
    }  # fmt: skip
    assert (
        events["c:0:2:0"]["to"] == "worker" and events["m:1:2"]["to"] == "boss" and events["r:1:1:0"]["from"] == "bash"
    )
    assert edges_of(found, "spawn") == {("c:0:2:0", "c:1:1:0")} and edges_of(found, "return") == {("m:1:2", "r:0:2:0")}
    assert edges_of(found, "aggregate") == {("m:1:2", "m:0:3")} and len(edges_of(found, "tool_dependency")) == 2
    assert found.trace.document["costs"]["tokens"] == 83 and found.trace.document["topology"] == "swarm"
    assert found.trace.document["costs"]["wall_clock_s"] == (29 if timed else 0)


def test_atif_damaged(tmp_path):
    """References that lead nowhere, out of the folder, or round in a circle; steps that are none."""
    outside = tmp_path / "secret.json"
    outside.write_text(json.dumps(child()))
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "t.json"
    refs = [{"trajectory_path": p} for p in ("../secret.json", str(outside), "t.json", "none.json", "\0", "x" * 9999)]
    refs += [{"trajectory_id": "nobody"}, {}, {"trajectory_id": "child-1"}, {"trajectory_id": "child-1"}]
    document = trajectory(refs, subagent_trajectories=[child(), child("never named"), 7])
    document["steps"] += [7, step(5, "nobody"), step(6, "agent", tool_calls=[{"tool_call_id": "x"}]),
                          step(7, "agent", "", None, [], [{"source_call_id": "gone", "content": 1}])]  # fmt: skip
    file.write_text(json.dumps(document))
    found = import_file(file)
    events = sound(found)
    assert [p.path for p in found.problems if p.level == "error"] == [
        "steps[4]",
        "steps[5].source",
        "steps[6].tool_calls",
    ]
    assert {e["agent"] for e in events.values()} == {"env", "human", "boss", "worker", "worker_2"}
    said = [p.reason for p in found.problems if p.level == "warning"]
    assert sum("is no file in or below" in reason for reason in said) >= 3 and len(said) == 11
    assert sum("read already" in reason for reason in said) == 1 and "second time" in "".join(said)
    assert found.records_in == 14 and len(found.left_out) == 3
    with pytest.raises(TraceError, match=r"steps\[4\]"):
        import_file(file, strict=True)
    deep = child("deepest")
    for n in range(20):
        ref = [{"content": "", "subagent_trajectory_ref": [{"trajectory_path": f"d{n}.json"}]}]
        (tmp_path / "in" / f"d{n}.json").write_text(json.dumps(deep))
        deep = {"agent": {"name": "a"}, "steps": [step(1, "agent", "x", None, [], ref)]}
    file.write_text(json.dumps(deep))
    found = import_file(file)
    sound(found)
    assert (
        any("more than 16 deep" in p.reason for p in found.problems)
        and found.trace.document["costs"]["sub_agents"] == 16
    )


# All of them --------------------------------------------------------------------------------------------------------


def test_formats_are_told_apart(tmp_path):
    main = session_on_disk(tmp_path)
    (tmp_path / "log.json").write_text(json.dumps(log(), indent=1))
    (tmp_path / "spans.json").write_text(json.dumps(batch(spans()), indent=1))
    (tmp_path / "other.json").write_text('{"a": [1]}')
    (tmp_path / "other.jsonl").write_text('{"a": [1]}\n')
    import_file(main).trace.save(tmp_path / "ours.json")
    files = ["log.json", "spans.json", main.name, ".", "ours.json", "other.json", "other.jsonl"]
    assert [detect(tmp_path / name) for name in files] == [
        "who-and-when", "otel", "claude-code", "claude-code", None, None, None,
    ]  # fmt: skip
    for call, said in (
        (lambda: import_file(tmp_path / "other.json"), "no transcript of a known format; allowed: who-and-when"),
        (lambda: import_file(tmp_path / "none.json"), "no such file"),
        (lambda: import_file(main, format="claude"), "unknown format 'claude'; did you mean claude-code"),
        (lambda: import_file(tmp_path / "spans.json", format="who-and-when"), "history: .*no list of messages"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    kept = salvage(tmp_path / "ours.json")
    assert kept.left_out == [] and len(kept.trace.events) == 13


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    trace = import_file(session_on_disk(tmp_path)).trace
    trace.document["events"][3]["agent"] = "agent $x$ \U0001f600" + "y" * 99
    png = plot(trace, tmp_path / "a.png", title="a $ team")
    assert png == (tmp_path / "a.png").read_bytes() == plot(trace, title="a $ team") and png.startswith(b"\x89PNG")
    svg = plot(trace, tmp_path / "a.svg").decode()
    assert "agent_aa11" in svg and "agent $x$ ?yyy" in svg and "human intervention" in svg
    with pytest.raises(ValueError, match=r"ends in '\.gif'"):
        plot(trace, tmp_path / "a.gif")
    trace.save(tmp_path / "t.json")
    assert cli.main(["trace", "plot", str(tmp_path / "t.json"), "--out", str(tmp_path / "b.png")]) == 0


def test_hostile_files_never_end_in_a_traceback(tmp_path, capsys):
    rng, codes = random.Random(0), []
    sources = [
        json.dumps(log()),
        json.dumps(batch(spans())),
        json.dumps(trajectory([{"trajectory_id": "child-1"}], subagent_trajectories=[child()])),
        "\n".join(map(json.dumps, main_thread() + side("aa11", "count left", 3))),
    ]
    glue = ["null", "[]", "{}", '"', "-1", "1e400", "NaN", "\\ud800", "\n", ",", "true", '"x"', "9" * 30]
    for n in range(300):
        text = rng.choice(sources)
        for _ in range(rng.randint(1, 6)):
            a = rng.randrange(len(text))
            b = min(len(text), a + rng.randint(0, 12))
            text = text[:a] + (rng.choice(glue) if rng.random() < 0.7 else "") + text[b:]
        file, out = tmp_path / f"f{rng.choice(['.json', '.jsonl'])}", tmp_path / "o.json"
        file.write_text(text)
        words = ["--format", rng.choice(["auto", "otel", "claude-code", "who-and-when", "atif"])]
        code = cli.main(["trace", "import", str(file), "--out", str(out), *words, *["--strict"] * (n % 2)])
        said = capsys.readouterr()
        assert code in (0, 2) and "Traceback" not in said.err and "DDPOMDP_DEBUG" not in said.err, (text, said.err)
        assert out.exists() == (code == 0) and (code == 0 or said.err.count("\n") == 1)
        if code == 0:
            assert [p for p in validate(out.read_text()) if p.level == "error"] == [], text
            out.unlink()
        codes.append(code)
    assert set(codes) == {0, 2}
