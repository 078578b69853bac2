"""Topologies: who may spawn whom, how deep, and who may talk to whom. One data row each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpomdp.options import UsageError, choose


@dataclass(frozen=True)
class Topology:
    """One row of the table.

    Attributes:
      spawn: whether there is spawning at all.
      max_depth: depth of the deepest life; the root has depth 0.
      max_parents: P, parents that can have children at the same time.
      sub_leads: whether leads may spawn leads (where depth allows).
      peers: whether siblings may message each other.
      crew: whether the root has one child of each other role from the start, and nobody is spawned or despawned.
    """

    name: str
    spawn: bool
    max_depth: int
    max_parents: int
    sub_leads: bool
    peers: bool
    crew: bool = False

    def numbers(self) -> tuple[tuple[str, str | int | bool], ...]:
        """What stands in a harness's digest: the columns, without those that came later and do not apply."""
        return tuple(sorted((name, value) for name, value in vars(self).items() if name != "crew" or value))


TOPOLOGIES = {
    row.name: row
    for row in (
        Topology("single", spawn=False, max_depth=0, max_parents=1, sub_leads=False, peers=False),
        Topology("swarm", spawn=True, max_depth=1, max_parents=1, sub_leads=False, peers=False),
        Topology(
            "planner_executor_critic",
            spawn=False,
            max_depth=1,
            max_parents=1,
            sub_leads=False,
            peers=False,
            crew=True,
        ),
        Topology("hierarchical", spawn=True, max_depth=2, max_parents=8, sub_leads=True, peers=True),
    )
}


CREW = 3  # roles beside the lead that `planner_executor_critic` needs


def topology(name: str, roles: Sequence[str] = (), fits: Iterable[str] = TOPOLOGIES) -> Topology:
    """A topology by name.

    Args:
      name: one of `TOPOLOGIES`.
      roles: the task's, `lead` first; a crew needs `CREW` others.
      fits: names of those that the task works under.

    Raises:
      ValueError: an unknown name, or one that does not fit the task; it says which do.
    """
    choose("topology", name, TOPOLOGIES)
    fits = [other for other in fits if not TOPOLOGIES[other].crew or len(roles) == 1 + CREW]
    if name not in fits:
        others = ", ".join(roles[1:])
        raise UsageError(f"topology: {name!r} does not fit the roles {others}; allowed: {', '.join(fits)}")
    return TOPOLOGIES[name]
