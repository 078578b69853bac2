"""How test processes compile.

Most of the time of a test run is compiling programs that then run for milliseconds. So they are compiled in a quarter
of the time, without the fusions and optimisations that users get, and what is compiled once is there for other workers,
subprocesses and runs. The slow tests (`make test-slow`) compile as users do. Both must give the same whole numbers.
"""

import os
from pathlib import Path

import pytest

# Before JAX is imported. Who sets these has the say.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


@pytest.fixture(scope="module", autouse=True)
def room():
    """A worker holds the programs of many modules, and may hold so many only."""
    from ddpomdp.bench.room import make_room

    make_room()
