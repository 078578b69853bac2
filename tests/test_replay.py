"""Heavy sweeps of replay: many episodes of every size, one very long file, and thousands of broken ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts

import ddpomdp
from ddpomdp.enums import StopReason
from ddpomdp.pytree import replace
from ddpomdp.trace import Trace, replaying

pytestmark = pytest.mark.slow
TINY = {"preset": "tiny", "poison": 0.2, "unanswerable": 0.2}
# name: (options, the team of the plan, episodes, ticks at most)
CASES = {
    "tiny": (TINY, {"count": 3}, 50, None),
    "small": ({}, {}, 50, None),
    "calibration": ({"preset": "calibration"}, {}, 50, None),
    "hierarchical": (
        {**TINY, "topology": "hierarchical", "capacity": 10, "max_ticks": 64, "counts": (1, 2, 4)},
        {"count": 2, "sub": (2, "even")},
        50,
        None,
    ),
    "k2.5": ({"preset": "k2.5"}, {"count": 64}, 2, 100),
    "k2.6": ({"preset": "k2.6"}, {"count": 256}, 2, 100),
    "stress": ({"preset": "stress"}, {"count": 256}, 2, 100),
}


def plans_of(env, team):
    """Half of the episodes are a team that works and is read, the others random turns of everyone."""
    return [scripts.plan(env, **team), scripts.plan(env, **team, random=True, never=())]


def traces(env, team, many, num_ticks):
    """As many episodes, each stepped by the program that replays it."""
    leads, plans = scripts.Leads(env), plans_of(env, team)
    act = jax.jit(lambda plan, key, ts: leads.act(plan, key, (), ts)[0])
    for seed in range(many):
        key = jax.random.key(seed)
        luck = jax.random.fold_in(key, 1)
        state, ts = replaying._reset(env, key, luck, env.params)
        events = []
        while not bool(ts.last) and len(events) < num_ticks:
            turns = act(plans[seed % 2], jax.random.fold_in(luck, 2), ts)
            state, ts = replaying._step(env, luck, state, turns, env.params)
            events.append(jax.tree.map(np.asarray, ts.events))
        stacked = jax.tree.map(lambda *x: np.stack(x), *events)
        reason = StopReason(int(ts.stop_reason)).name.lower()
        yield Trace.from_events(env, stacked, key, luck, policy="plan", stop_reason=reason, info=ts.info)


@pytest.mark.parametrize("name", CASES)
def test_every_field_of_every_event_comes_out_equal(name):
    options, team, many, ticks = CASES[name]
    env = ddpomdp.make("Search-v0", **options)
    played = events = 0
    for trace in traces(env, team, many, ticks or env.spec.max_ticks):
        back = Trace.from_json(trace.to_json())
        assert replaying.verify(back, env) == trace.head["ticks"]
        played, events = played + 1, events + len(trace.events)
    print(f"{name}: {played} episodes, {events:,} events")
    assert played == many and events > 20 * many


def test_episodes_of_a_batch_come_out_equal_one_by_one(monkeypatch):
    """Integers exactly; floats to 1e-5, for the batch is another program, and may round them otherwise."""
    monkeypatch.setattr(replaying, "is_exact", lambda head: False)
    env = ddpomdp.make("Search-v0", **TINY)
    leads, plans = scripts.Leads(env), plans_of(env, {"count": 3})
    keys = jax.vmap(jax.random.key)(jnp.arange(10))
    mixed = jax.tree.map(lambda *x: jnp.stack([x[b % 2] for b in range(10)]), *plans)
    play = jax.jit(jax.vmap(lambda key, plan: ddpomdp.rollout(env, leads, plan, key, env.spec.max_ticks)))
    batch = jax.tree.map(np.asarray, replace(play(keys, mixed), state=None, aux=None))
    for b in range(10):
        one = jax.tree.map(lambda x: x[b], batch)  # noqa: B023
        replaying.verify(Trace.from_rollout(env, one, keys[b]), env)


# In processes of their own, so that the memory measured is theirs.

# The peak is the kernel's for this program; what getrusage tells includes that of the process it was forked from.
PEAK = """
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024
"""

LONG = """
import time, jax, numpy as np
import ddpomdp, scripts
from ddpomdp.enums import StopReason
from ddpomdp.trace import Trace, replaying, validate
env = ddpomdp.make("Search-v0", preset="k2.6")
leads, plan = scripts.Leads(env), scripts.plan(env, count=256, random=True)
act = jax.jit(lambda plan, key, ts: leads.act(plan, key, (), ts)[0])
key = jax.random.key(0)
luck = jax.random.fold_in(key, 1)
state, ts = replaying._reset(env, key, luck, env.params)
events = []
while not bool(ts.last):
    state, ts = replaying._step(env, luck, state, act(plan, key, ts), env.params)
    events.append(jax.tree.map(np.asarray, ts.events))
stacked = jax.tree.map(lambda *x: np.stack(x), *events)
reason = StopReason(int(ts.stop_reason)).name.lower()
Trace.from_events(env, stacked, key, luck, stop_reason=reason, info=ts.info).save("long.json")
del stacked, events
began = time.perf_counter()
text = open("long.json", encoding="utf-8").read()
assert validate(text) == []
checked = time.perf_counter()
trace = Trace.load("long.json")
ticks = replaying.verify(trace, env)
done = time.perf_counter()
print(f"{len(text)} bytes, {len(trace.events)} events, {ticks} ticks, {reason}: validated in {checked - began:.0f} s, "
      f"replayed in {done - checked:.0f} s, peak {peak()} MiB")
"""

MUTANTS = """
import test_trace_hostile as hostile
hostile.test_mutants_are_refused_or_taken_whole()
print(f"{hostile.MUTANTS} mutants, peak {peak()} MiB")
"""


def run(code, folder):
    path = os.pathsep.join([str(Path(__file__).parent), *(p for p in sys.path if p)])
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PEAK + code], env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    print(done.stdout)
    return done.stdout


def test_a_whole_file_of_the_largest_preset(tmp_path):
    said = run(LONG, tmp_path)
    numbers = re.search(r"(\d+) bytes, (\d+) events, (\d+) ticks, (\w+): .* peak (\d+) MiB", said)
    assert numbers is not None
    size, events, ticks, reason, peak = numbers.groups()
    assert int(size) > 10**6 and int(events) > 4_000 and int(ticks) > 20 and reason == "budget"
    assert int(peak) < 2_048


def test_two_thousand_mutants_in_little_memory(tmp_path):
    said = run(MUTANTS, tmp_path)
    assert said.startswith("2000 mutants") and int(said.split()[-2]) < 1_024
