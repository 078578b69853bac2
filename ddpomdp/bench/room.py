"""Room for compiled programs: a process may hold so many memory maps only, and each program takes hundreds.

On Linux the limit is 65,530 by default; beyond it LLVM ends the process ("Cannot allocate memory").
"""

import gc
from pathlib import Path

LIMIT, MAPS = Path("/proc/sys/vm/max_map_count"), Path("/proc/self/maps")
SHARE = 0.5  # of the limit from which on programs are dropped


def make_room() -> bool:
    """Drop JAX's compiled programs if half of the maps are taken; what is needed again is compiled again.

    Returns whether it did. Where the system does not tell, nothing happens.
    """
    try:
        limit, taken = int(LIMIT.read_text()), MAPS.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return False
    if taken <= SHARE * limit:
        return False
    import jax

    jax.clear_caches()
    gc.collect()
    return True
