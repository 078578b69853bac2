"""The price of a token as an input of networks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEAST = 1e-9  # whatever is cheaper counts as this


def log_price(price: Any) -> Any:
    """(log10 price + 6) / 2: quality points per token 1e-8 .. 1e-4 are -1 .. 1. A float's is a float."""
    xp = jnp if isinstance(price, jax.Array) else np
    scaled = (xp.log10(xp.maximum(price, LEAST)) + 6.0) / 2.0
    return scaled if isinstance(price, jax.Array) else float(scaled)
