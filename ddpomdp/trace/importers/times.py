"""Dates as whole nanoseconds, so that order and differences are exact."""

from datetime import UTC, datetime
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(stamp: Any) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 date and time (UTC where it names no zone); None for anything else."""
    try:
        moment = datetime.fromisoformat(stamp)
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    except (TypeError, ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
