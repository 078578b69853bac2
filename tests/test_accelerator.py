"""Episodes are the same with an accelerator's fences as with a CPU's, and a difference would be seen."""

import jax
import numpy as np
import pytest

import ddpomdp
from ddpomdp.bench.cases import Unstopping
from ddpomdp_baselines import accelerator


@pytest.mark.slow  # a CPU drops the fences of accelerators and compiles long
def test_an_accelerators_program_plays_the_same_episodes(monkeypatch):
    def digests():
        env = ddpomdp.make("Search-v0", preset="tiny")
        return accelerator.digests(env, Unstopping(env), 16, 24)

    here = digests()
    jax.clear_caches()  # what was traced for a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    there = digests()
    jax.clear_caches()
    assert accelerator.parted(here, there) == (1.0, {})
    # Every episode is its own, and nothing that is compared stands still.
    assert len({here["latency_ms"][:, b].tobytes() for b in range(16)}) == 16
    assert {"tokens", "uid", "target_uid", "cost_tokens", "result_code"} <= set(here)
    other = {name: value.copy() for name, value in here.items()}
    other["latency_ms"][5, 3] += 1
    other["clock_ms"][6:, 3] += 1
    other["refused"][2, 9] += 1
    assert accelerator.parted(here, other) == (14 / 16, {"latency_ms": 1, "refused": 1})


def test_a_number_in_another_place_is_another_hash():
    hashes = [
        int(accelerator._hash(np.asarray(x, np.int32)))
        for x in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [-1, 1, 1])
    ]
    assert len(set(hashes)) == 5


def test_without_one_it_says_so(capsys):
    assert accelerator.main([]) == 2
    assert "JAX sees no accelerator" in capsys.readouterr().err
