"""What a user of the bare wheel does first; run by tests/check_wheel.py with the Python that has only the wheel."""

import contextlib
import io
import sys

captured = io.StringIO()
with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured):
    import ddpomdp

assert captured.getvalue() == "", f"import ddpomdp printed {captured.getvalue()!r}"
for name in ("ddpomdp_envs", "ddpomdp_baselines", "matplotlib", "pettingzoo"):
    assert name not in sys.modules, f"import ddpomdp loaded {name}"

# Only after the check of what ddpomdp alone loads, hence not at the top.
import jax  # noqa: E402

import ddpomdp_baselines  # noqa: E402
import ddpomdp_envs  # noqa: E402

for package in (ddpomdp, ddpomdp_envs, ddpomdp_baselines):
    assert "site-packages" in str(package.__file__), f"{package.__name__} is {package.__file__}, not the wheel's"

assert "Search-v0" in ddpomdp.list_envs(), ddpomdp.list_envs()
env = ddpomdp.make("Search-v0", preset="tiny")
key = jax.random.key(0)
luck = jax.random.fold_in(key, 1)
state, ts = env.reset(key, luck)
assert ts.alive.any(), "nobody is alive after reset"
ticks = 0
while ticks < 8 and not ts.last:
    turns = env.sample_turns(jax.random.fold_in(key, 100 + ticks), ts)
    state, ts = env.step(luck, state, turns)
    ticks += 1
assert ticks > 0
assert jax.numpy.isfinite(ts.reward).all(), ts.reward
print(f"wheel smoke test: {len(ddpomdp.list_envs())} environments, {ticks} ticks")
