"""What other packages add: suites, commands, environments and policies, found through entry points at use."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ddpomdp.options import UsageError, refusal


def found(group: str) -> dict[str, EntryPoint]:
    """The entry points of `group` by name, sorted, nothing imported; two of one name raise `UsageError`."""
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(f"two packages register {point.name!r} in {group}: {other.value} and {point.value}")
    return points


def load(group: str, name: str, what: str) -> Any:
    """The object that `group` registers under `name`; an unknown name raises `UsageError` with what is allowed."""
    points = found(group)
    if not isinstance(name, str) or name not in points:
        raise UsageError(refusal(what, name, points))
    try:
        return points[name].load()
    except (ImportError, AttributeError) as error:
        dist = getattr(points[name].dist, "name", None)
        hint = f"; pip install '{dist}[all]'" if dist and isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{what} {name!r} cannot be loaded from {points[name].value}: {error}{hint}") from error
