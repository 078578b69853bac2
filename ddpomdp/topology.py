"""Topologies: who may spawn whom, how deep, and who may talk to whom. One data row each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

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
      up: whether children may message their parent; they return in any case.
      down: whether parents may message their children and hand them work again.
      alike: whether all children have one role, the task's first.
      listens: whether a wait of a life without children is for mail on its way to it.
      checked: whether answers are merged by rules that heed checks only.
      crew: whether the root has one child of each other role from the start, and nobody is spawned or despawned.
    """

    name: str
    spawn: bool
    max_depth: int
    max_parents: int
    sub_leads: bool
    peers: bool
    crew: bool = False
    up: bool = True
    down: bool = True
    alike: bool = False
    listens: bool = False
    checked: bool = False

    def numbers(self) -> tuple[tuple[str, str | int | bool], ...]:
        """What stands in a harness's digest: the columns, without those that came later and do not apply."""
        plain = {each.name: each.default for each in fields(self)}
        return tuple(sorted((name, value) for name, value in vars(self).items() if value is not plain[name]))


def _swarm(name: str, peers: bool = False, **columns: bool) -> Topology:
    """A row like `swarm` but for some columns."""
    return Topology(name, spawn=True, max_depth=1, max_parents=1, sub_leads=False, peers=peers, **columns)


TOPOLOGIES = {
    row.name: row
    for row in (
        Topology("single", spawn=False, max_depth=0, max_parents=1, sub_leads=False, peers=False),
        _swarm("swarm"),
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
        # A swarm whose results pass a checker before they count.
        _swarm("centralized", checked=True),
        # Equals who tell each other what they found; the lead only starts and ends it.
        _swarm("debate", peers=True, alike=True, listens=True),
        # Workers are called and answer, and can be called again; they say nothing of their own accord.
        _swarm("managed", up=False),
        # Workers know nothing of each other and are called once; their results are merged.
        _swarm("independent", up=False, down=False, alike=True),
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
