"""A trace as a NetworkX graph."""

from typing import Any

from ddpomdp.trace.trace import Trace


def to_networkx(trace: Trace) -> Any:
    """`networkx.MultiDiGraph`: events are nodes by id, with their fields; edges have their type as key and attribute.

    The graph itself carries trace_id, task_id, system and topology. The records of turns are left out: attributes are
    strings, numbers and booleans, so that every writer of NetworkX takes them.

    Raises:
      ImportError: networkx (extra `trace`) is not installed.
    """
    try:
        import networkx
    except ImportError as error:
        raise ImportError("a graph needs networkx: pip install 'ddpomdp[trace]'") from error

    about = ("trace_id", "task_id", "system", "topology")
    graph = networkx.MultiDiGraph(**{name: trace.document[name] for name in about if name in trace.document})
    for event in trace.events:
        plain = {name: value for name, value in event.items() if isinstance(value, str | bool | int | float)}
        graph.add_node(event["id"], **plain)
    for edge in trace.edges:
        graph.add_edge(edge["src"], edge["dst"], key=edge["type"], type=edge["type"])
    return graph
