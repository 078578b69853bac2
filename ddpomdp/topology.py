"""Topologies: who may spawn whom, how deep, and who may talk to whom. One data row each."""

from dataclasses import dataclass

from ddpomdp.options import choose


@dataclass(frozen=True)
class Topology:
    """One row of the table.

    Attributes:
      spawn: whether there is spawning at all.
      max_depth: depth of the deepest life; the root has depth 0.
      max_parents: P, parents that can have children at the same time.
      sub_leads: whether leads may spawn leads (where depth allows).
      peers: whether siblings may message each other.
    """

    name: str
    spawn: bool
    max_depth: int
    max_parents: int
    sub_leads: bool
    peers: bool


TOPOLOGIES = {
    row.name: row
    for row in (
        Topology("single", spawn=False, max_depth=0, max_parents=1, sub_leads=False, peers=False),
        Topology("swarm", spawn=True, max_depth=1, max_parents=1, sub_leads=False, peers=False),
        Topology("hierarchical", spawn=True, max_depth=2, max_parents=8, sub_leads=True, peers=True),
    )
}


def topology(name: str) -> Topology:
    """A topology by name; ValueError lists the names."""
    choose("topology", name, TOPOLOGIES)
    return TOPOLOGIES[name]
