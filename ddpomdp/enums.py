"""The enumerations of the public contract. Values are fixed: traces and results store them."""

from enum import IntEnum


class Decision(IntEnum):
    """Which orchestration decision a turn is (O1 spawn .. O5 stop of the survey)."""

    NONE = 0
    SPAWN = 1
    DELEGATE = 2
    COMMUNICATE = 3
    AGGREGATE = 4
    STOP = 5


class EventKind(IntEnum):
    """What kind of call an event records."""

    WAIT = 0
    SPAWN = 1
    DELEGATE = 2
    MESSAGE = 3
    RETURN = 4
    AGGREGATE = 5
    FOLD = 6
    DESPAWN = 7
    STOP = 8
    TOOL = 9


class StopReason(IntEnum):
    """Why an episode ended; with several causes in one tick the lowest positive value counts."""

    RUNNING = 0
    STOPPED = 1
    BUDGET = 2
    HORIZON = 3


class LifeEnd(IntEnum):
    """How a life ended."""

    ALIVE = 0
    DESPAWNED = 1
    EPISODE = 2


class CreditUnit(IntEnum):
    """The eight units credit can be assigned to, from coarse to fine."""

    TEAM = 0
    ORCHESTRATOR = 1
    ROLE = 2
    AGENT = 3
    TURN = 4
    MESSAGE = 5
    TOOL_CALL = 6
    TOKEN = 7


class WaitFor(IntEnum):
    """What a `wait` waits for: the argument's value."""

    ONE = 0
    HALF = 1
    ALL = 2


class Group(IntEnum):
    """The group a message is addressed to (0: a roster row, or no message)."""

    NONE = 0
    PARENT = 1
    CHILDREN = 2
    PEERS = 3


class ResultCode(IntEnum):
    """What came of a call, as its caller is told."""

    NOTHING = 0
    DONE = 1
    IN_PROGRESS = 2
    FOUND = 3
    EMPTY = 4
    FAULT = 5
    REFUSED = 6
    ILLEGAL = 7
    ACCEPTED = 8
    REJECTED = 9
