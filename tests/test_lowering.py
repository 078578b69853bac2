"""Steps and updates lower for TPU and CUDA on a machine without one: no 64-bit floats, no call back to Python."""

import jax
import pytest
from jax import export

import ddpomdp
from ddpomdp import wrappers
from ddpomdp.coach import coach_of
from ddpomdp_baselines import algorithms
from ddpomdp_baselines.learner import Sizes, Update, start
from ddpomdp_baselines.network import Network

SAME_LAWS = ("Additive-v0", "Majority-v0")  # Chain-v0 stands for the control environments
SIZES = Sizes(groups=2, group_size=2, num_ticks=4, chunk=8)


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    """How moves are fenced is chosen by the backend; traced is what an accelerator would be given."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")


def lowered(fn, *args):
    """The text of the module that both platforms would compile."""
    module = export.export(jax.jit(fn), platforms=["tpu", "cuda"])(*args).mlir_module()
    assert "optimization_barrier" in module  # an accelerator's fence, not that of CPUs
    assert "f64" not in module
    assert "callback" not in module
    return module


def test_what_is_looked_for_would_be_found():
    def calls_back(x):
        return jax.pure_callback(lambda x: x, x, x)

    with jax.enable_x64(True):
        wide = export.export(jax.jit(lambda x: x * 2.0), platforms=["tpu"])(jax.numpy.float64(1)).mlir_module()
    assert "f64" in wide
    assert "callback" in jax.jit(calls_back).lower(jax.numpy.float32(1)).as_text()


@pytest.mark.parametrize("name", [name for name in ddpomdp.list_envs() if name not in SAME_LAWS])
def test_steps_lower(name):
    vector = wrappers.auto_reset(ddpomdp.make(name, preset="tiny"), 2)
    running, ts = jax.eval_shape(vector.reset, jax.random.key(0))
    lowered(vector.step, running, jax.ShapeDtypeStruct(ts.events.tokens.shape, "int32"))


def update_lowers(env, name, coach=None):
    network, algorithm = Network(env, width=8), algorithms.find(name)
    update = Update(env, network, algorithm, SIZES, env.spec.roles, coach)
    params = network.init(env)
    lowered(update, start(params, SIZES), jax.random.key(0), params, env.params)


def test_an_update_lowers():
    update_lowers(ddpomdp.make("Additive-v0", preset="tiny"), "grpo")


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_all_updates_lower(name):
    env = ddpomdp.make("DataScience-v0", preset="tiny")
    update_lowers(env, name, coach_of(env) if algorithms.find(name).reward == "mappa" else None)
