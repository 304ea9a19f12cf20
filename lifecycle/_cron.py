"""`Cron`: the times of a cron expression in a time zone."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CATCH_UP", "LATE", "Cron"]

#: The policies for missed times.
CATCH_UP = ("none", "once", "all")
#: A time counts as missed if nothing happened until this many seconds later.
LATE = 60.0
_NO_ZONES = "this system has no time zones, so install them: pip install tzdata"
_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron:
    """The times of ``expression`` in ``timezone``, with the rules of Debian's cron for daylight saving time.

    Raises:
        ValueError: if the expression, the time zone or ``catch_up`` is invalid, or if the expression never matches.
    """

    def __init__(self, expression: str, timezone: str | tzinfo | None, catch_up: str) -> None:
        if catch_up not in CATCH_UP:
            raise ValueError(f"catch_up={catch_up!r} is unknown; use one of {', '.join(map(repr, CATCH_UP))}")
        self.expression: str = expression
        self.timezone: tzinfo = _zone(timezone)
        try:
            self.next(datetime.now(self.timezone))
        except CronSimError as error:
            raise ValueError(
                f"{self.expression!r} is not a cron expression ({error}); use five fields, such as '0 3 * * *', "
                f"six fields with seconds first, or one of {', '.join(_NAMES)}"
            ) from None
        except StopIteration:
            raise ValueError(f"{self.expression!r} never matches; check the day and the month") from None

    def next(self, moment: datetime) -> datetime:
        """Return the first time after ``moment``."""
        return next(CronSim(_NAMES.get(self.expression, self.expression), moment))

    def before(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times before ``moment``, the latest first."""
        return CronSim(_NAMES.get(self.expression, self.expression), moment, reverse=True)


def _zone(timezone: str | tzinfo | None) -> tzinfo:
    """Return a time zone with its rules for daylight saving time.

    Raises:
        ValueError: if no zone has that name.
    """
    if isinstance(timezone, tzinfo):
        return timezone
    name = timezone or os.environ.get("TZ", "").lstrip(":")
    try:
        if name:
            return ZoneInfo(name)
        with Path("/etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file)
    except (ZoneInfoNotFoundError, ValueError) as error:
        # Windows, Alpine Linux and distroless images have no time zones, unless the package tzdata is installed.
        advice = "use a name such as 'Europe/Berlin'" if available_timezones() else _NO_ZONES
        raise ValueError(f"timezone={name!r} is unknown; {advice}") from error
    except OSError:
        return UTC
