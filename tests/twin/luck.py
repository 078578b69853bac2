"""The uniforms of an episode in plain integers: the same hash as `ddpomdp.luck`, written once more."""

import numpy as np

MASK = 0xFFFFFFFF
PARITY = 0x1BD11BDA
ROOT = (0x243F6A88, 0x85A308D3)
TASK = (0x13198A2E, 0x03707344)
SERVICE, HANDOUT, WORK, OUTCOME, CLAIM, ROW, OBEY = range(7)
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds: two words from two words under a key of two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    a, b = (counter[0] + key[0]) & MASK, (counter[1] + key[1]) & MASK
    for turn in range(20):
        by = ROTATIONS[turn % 8]
        a = (a + b) & MASK
        b = ((b << by) | (b >> (32 - by))) & MASK
        b ^= a
        if turn % 4 == 3:
            step = turn // 4 + 1
            a = (a + keys[step % 3]) & MASK
            b = (b + keys[(step + 1) % 3] + step) & MASK
    return a, b


def draw(key: tuple[int, int], lineage: tuple[int, int], turn: int, purpose: int) -> tuple[int, int]:
    """The two words of a life for one of its turns and one purpose."""
    return threefry((key[0] ^ lineage[0], key[1] ^ lineage[1]), (turn, purpose))


def child(lineage: tuple[int, int], turn: int, place: int) -> tuple[int, int]:
    """Name of the child born at a place of the spawn that a life made in a turn."""
    return threefry(lineage, (turn, place))


def field(word: int, shift: int, bits: int) -> int:
    """Some bits of a word."""
    return (word >> shift) & ((1 << bits) - 1)


def below(word: int, shift: int, bits: int, count: int) -> int:
    """A whole number below `count` by some bits of a word."""
    return field(word, shift, bits) * count >> bits


def share(word: int, shift: int, bits: int) -> np.float32:
    """Some bits of a word as a number in [0, 1)."""
    return np.float32(field(word, shift, bits) / (1 << bits))


def unit(word: int) -> np.float32:
    """The upper 24 bits of a word as a number in [0, 1)."""
    return share(word, 8, 24)
