"""Mail among siblings: who hears what, by hand."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from ddpomdp import claims, messages


def test_nobody_hears_itself_when_siblings_write_in_the_same_tick():
    """Slots 1 to 3 are siblings, of whom 1 and 2 write; slot 4 writes alone below another parent.

    Slot 1 tells claims 0 and 1, slot 2 claims 1 and 2, slot 4 claim 5. A summary may hold a garbled claim that its
    sender does not know: what one tells is no news from the others.
    """
    lives = SimpleNamespace(alive=jnp.ones(5, bool), home=jnp.asarray([-1, 0, 0, 0, 1]), uid=jnp.arange(5))
    beside = jnp.asarray([False, True, True, False, True])
    sent = jnp.asarray([[0], [0b011], [0b110], [0], [0b100000]], jnp.uint32)
    zero = jnp.zeros(5)
    side = messages._sideways(lives, 2, beside, sent, zero, zero.astype(jnp.int32), zero.astype(jnp.int32))
    assert side.count.tolist() == [0, 1, 1, 2, 0]
    # Claim 1 comes from both, so both hear it, of the other.
    assert side.claims[1:4, 0].tolist() == [0b110, 0b011, 0b111] and side.claims[4, 0] == 0
    three = messages._sideways(lives, 2, beside.at[3].set(True), sent.at[3].set(0b1000), zero, *[zero.astype(int)] * 2)
    assert three.claims[1:4, 0].tolist() == [0b1110, 0b1011, 0b111] and three.count.tolist() == [0, 2, 2, 2, 0]


def test_what_is_in_two_sets_at_least():
    words = jnp.asarray([[0b0011], [0b0110], [0b1010], [0]], jnp.uint32)
    told, often = claims.union_and_shared(words)
    np.testing.assert_array_equal((told[0], often[0]), (0b1111, 0b0010))
    assert [int(x[0, 0]) for x in claims.union_and_shared(words[None, :1], axis=1)] == [0b0011, 0]
