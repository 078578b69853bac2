"""Golden traces: episodes written once, committed, and replayed event by event ever since."""

import re
from pathlib import Path

import jax
import pytest

from ddpomdp import make
from ddpomdp.trace import Difference, Trace, TraceError, replaying

HERE = Path(__file__).parent / "golden"
NAMES = ("hierarchical", "tiny")
AGAIN = "if the laws were changed on purpose, write the golden traces again: python tests/golden/make.py"
SMALL = 60_000  # bytes


def load(name):
    try:
        return Trace.load(HERE / f"{name}.json")
    except TraceError as error:
        pytest.fail(f"{name}.json: {error}; {AGAIN}")


def test_they_are_small_and_hold_every_kind_of_event():
    assert sorted(path.stem for path in HERE.glob("*.json")) == list(NAMES)
    types, decisions = set(), set()
    for name in NAMES:
        assert (HERE / f"{name}.json").stat().st_size < SMALL
        trace = load(name)
        types |= {event["type"] for event in trace.events}
        decisions |= {event["decision"] for event in trace.events if "decision" in event}
        assert trace.head["stop_reason"] == "stopped" and trace.costs["sub_agents"] >= 3
    assert types >= {"spawn", "despawn", "message", "tool_call", "tool_result", "return", "aggregate"}
    assert decisions >= {"reset", "wait", "delegate", "stop"}
    assert {agent for event in load("hierarchical").events for agent in [event["agent"]]} >= {"lead", "lead_1"}


@pytest.mark.parametrize("name", NAMES)
def test_replay(name, monkeypatch):
    """Integers exactly; floats to 1e-5, for another processor or JAX may round them otherwise."""
    monkeypatch.setattr(replaying, "is_exact", lambda head: False)
    trace = load(name)
    assert trace.to_json() == (HERE / f"{name}.json").read_text("utf-8")
    try:
        assert replaying.verify(trace) == trace.head["ticks"] > 20
    except (Difference, TraceError) as error:
        pytest.fail(f"{name}.json: {error}; {AGAIN}")


def test_the_laws_draw_nothing_from_jax_s_generator():
    """So JAX's settings of its generator, and changes of it, change no golden trace."""
    env = make("Search-v0", preset="tiny")
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    turns = jax.ShapeDtypeStruct((env.spec.capacity, 1 + env.spec.num_args), "int32")
    for program in (
        jax.make_jaxpr(env.reset)(jax.random.key(0), jax.random.key(1)),
        jax.make_jaxpr(env.step)(jax.random.key(0), state, turns),
    ):
        used = set(re.findall(r"\brandom_\w+|threefry2x32", str(program)))
        assert used == {"random_unwrap"}  # the words of the key that was passed in
    drawing = jax.make_jaxpr(lambda key: jax.random.uniform(key))(jax.random.key(0))
    assert "random_bits" in str(drawing)  # what would be found
