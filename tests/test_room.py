"""Programs are dropped before a process runs out of memory maps, and not before."""

import jax
import jax.numpy as jnp

from ddpomdp.bench import room


def maps():
    return room.MAPS.read_bytes().count(b"\n")


def test_programs_are_dropped_when_half_of_the_maps_are_taken(tmp_path, monkeypatch):
    calls = 0

    @jax.jit
    def program(x):
        nonlocal calls
        calls += 1
        return jnp.sort(x) @ x

    program(jnp.arange(8.0))
    monkeypatch.setattr(room, "LIMIT", tmp_path / "limit")
    room.LIMIT.write_text(str(3 * maps()))
    assert not room.make_room()
    program(jnp.arange(8.0))
    assert calls == 1
    room.LIMIT.write_text(str(maps()))
    assert room.make_room()
    assert program(jnp.arange(8.0)) == 140.0 and calls == 2


def test_where_the_system_does_not_tell_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "LIMIT", tmp_path / "missing")
    assert not room.make_room()
