"""Save states until killed: `python saving.py FOLDER`. Prints `start N`, then `saved N` as each save has returned."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp_baselines import checkpoints

DESCRIPTION = {"env": "Fake-v0", "seed": 0}


def state(update):
    """A state all of whose parts tell `update`; bfloat16 its last eight bits, which is all that it holds exactly."""
    return {
        "params": {"w": jnp.full((64, 512), update, jnp.float32), "b": jnp.full(7, update % 256, jnp.bfloat16)},
        "optimizer": (jnp.full((64, 512), -update, jnp.float32), jnp.int32(update)),
        "key": jax.random.key(update),
        "raw_key": jax.random.PRNGKey(update),
        "samples": 2**40 + update,
        "seen": np.full(3, update, np.int64),
    }


def told(saved):
    """The updates that the parts of a state tell: one, if it is all of one save."""
    above = int(saved["optimizer"][1]) // 256 * 256
    return {
        *np.asarray(saved["params"]["w"]).ravel().tolist(),
        *(above + np.asarray(saved["params"]["b"], np.float32)).tolist(),
        *(-np.asarray(saved["optimizer"][0])).ravel().tolist(),
        int(saved["optimizer"][1]),
        int(jax.random.key_data(saved["key"])[-1]),
        int(saved["raw_key"][-1]),
        saved["samples"] - 2**40,
        *saved["seen"].tolist(),
    }


def main(folder):
    with checkpoints.hold(folder, DESCRIPTION, state(0), resume=True, keep=2) as run:
        assert told(run.start.state) == {run.start.update}
        print("start", run.start.update, flush=True)
        update = run.start.update
        while True:
            update += 1
            run.save(update, state(update))
            print("saved", update, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
