"""Links from records to their parents, made a forest: what leads nowhere is let go, cycles are cut."""

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


def forest(parents: Mapping[Key, Key | None], order: Mapping[Key, Any]) -> tuple[dict[Key, Key | None], list, list]:
    """(parents without loops, keys whose parent is no key, keys whose link was cut).

    Args:
      parents: the parent of each key, None for a root.
      order: for each key a value that sorts; a cycle is cut above its first member, so that the result does not depend
        on the order of the records.

    Linear in the number of links, however deep they are.
    """
    out = {key: parent if parent in parents else None for key, parent in parents.items()}
    dangling = sorted((key for key, parent in parents.items() if parent is not None and parent not in parents), key=str)
    cut: list[Key] = []
    done: set[Key] = set()
    for start in out:
        path: list[Key] = []
        place: dict[Key, int] = {}
        key: Key | None = start
        while key is not None and key not in done and key not in place:
            place[key] = len(path)
            path.append(key)
            key = out[key]
        if key is not None and key in place:
            first = min(path[place[key] :], key=lambda member: order[member])
            out[first] = None
            cut.append(first)
        done.update(path)
    return out, dangling, sorted(cut, key=str)


def nearest(parents: Mapping[Key, Key | None], wanted: Mapping[Key, Any]) -> dict[Key, Key | None]:
    """For each key of a forest its nearest ancestor (not itself) that is in `wanted`; None if there is none."""
    found: dict[Key, Key | None] = {}
    for start in parents:
        path = [start]
        while path[-1] not in found:
            parent = parents[path[-1]]
            if parent is None or parent in wanted:
                found[path[-1]] = parent
            else:
                path.append(parent)
        for key in reversed(path[:-1]):
            found[key] = found[parents[key]]  # pyright: ignore[reportArgumentType]
    return found
