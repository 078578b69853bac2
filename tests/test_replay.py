"""Heavy sweeps of replay: many episodes of every size, one very long file, and thousands of broken ones.

Axis letters: B batch.
"""

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
AT_ONCE = 10


def traces(env, team, many, num_ticks):
    """As many episodes, batched: half of them random turns, the others a team that works and is read."""
    leads = scripts.Leads(env)
    plans = [scripts.plan(env, **team), scripts.plan(env, **team, random=True, never=())]
    play = jax.jit(jax.vmap(lambda key, plan: needed(ddpomdp.rollout(env, leads, plan, key, num_ticks))))
    for start in range(0, many, AT_ONCE):
        size = min(AT_ONCE, many)
        keys = jax.vmap(jax.random.key)(jnp.arange(start, start + size))
        mixed = jax.tree.map(lambda *x: jnp.stack([x[b % 2] for b in range(size)]), *plans)  # noqa: B023
        batch = jax.tree.map(np.asarray, play(keys, mixed))
        for b in range(size):
            one = jax.tree.map(lambda x: x[b], batch)  # noqa: B023
            yield Trace.from_rollout(env, one, keys[b], policy="plan")


def needed(rollout):
    """The rollout without what a trace does not need."""
    return replace(rollout, ts=None, state=None, aux=None, next_ts=replace(rollout.next_ts, observation=None))


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


# In processes of their own, so that the memory measured is theirs.

LONG = """
import resource, time, jax, numpy as np
import ddpomdp, scripts
from ddpomdp.enums import StopReason
from ddpomdp.trace import Trace, replaying, validate
env = ddpomdp.make("Search-v0", preset="k2.6")
leads, plan = scripts.Leads(env), scripts.plan(env, count=256, more="even")
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
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(f"{len(text)} bytes, {len(trace.events)} events, {ticks} ticks, {reason}: validated in {checked - began:.0f} s, "
      f"replayed in {done - checked:.0f} s, peak {peak} MiB")
"""

MUTANTS = """
import resource
import test_trace_hostile as hostile
hostile.test_mutants_are_refused_or_taken_whole()
print(f"{hostile.MUTANTS} mutants, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
"""


def run(code, folder):
    path = os.pathsep.join([str(Path(__file__).parent), *(p for p in sys.path if p)])
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    print(done.stdout)
    return done.stdout


def test_a_whole_file_of_the_largest_preset(tmp_path):
    said = run(LONG, tmp_path)
    numbers = re.search(r"(\d+) bytes, (\d+) events, (\d+) ticks, (\w+): .* peak (\d+) MiB", said)
    assert numbers is not None
    size, events, ticks, reason, peak = numbers.groups()
    assert int(size) > 10**6 and int(events) > 2_000 and int(ticks) > 100 and reason != "running"
    assert int(peak) < 2_048


def test_two_thousand_mutants_in_little_memory(tmp_path):
    said = run(MUTANTS, tmp_path)
    assert said.startswith("2000 mutants") and int(said.split()[-2]) < 1_024
