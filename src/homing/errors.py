"""What may be raised. A refused mail is no error but an `Outcome`; these are misuse and outages.

HomingError
├── SettingsError        a setting is unknown, malformed or out of range; says how to mend it
├── DatabaseError        the database said no
│   ├── Unreachable      it cannot be reached; try again later
│   ├── Conflict         a lock or a transaction lost against another process
│   │   └── Locked       somebody has one of the rows open in a transaction; others may be free
│   ├── Refused          it does not take a value of ours; trying again would change nothing
│   │   └── MissingValue a column wants a value, and was given none; names it
│   └── SchemaError      migrations are missing or were changed after they had been applied
│       └── NoDatabase   there is not even a file to look into
├── InvalidRequest       what a caller asked for is malformed; names the field
│   ├── PayloadTooLarge  it is too long to be read
│   └── WrongMediaType   it is not JSON
├── Forbidden            whoever asks may not
├── NotAllowed           the message is in a state in which that cannot be done
├── NotFound             there is no such message
└── RateLimited          called too often; says when to come back
    └── Busy             not by who asks, but by all together
"""

from __future__ import annotations


class HomingError(Exception):
    """Something that a person has to know, in a sentence they can act on."""


class SettingsError(HomingError):
    """A setting is unknown, malformed or out of range."""


class DatabaseError(HomingError):
    """The database said no."""


class Unreachable(DatabaseError):
    """The database cannot be reached, or hung up."""


class Conflict(DatabaseError):
    """A lock or a transaction was lost against another process; nothing was written."""


class Locked(Conflict):
    """Somebody holds one of the rows, or what stands for them, in a transaction that goes on."""


class Refused(DatabaseError):
    """The database does not take a value: too long, not allowed, malformed."""


class MissingValue(Refused):
    """A column is NOT NULL, and was given nothing."""

    def __init__(self, column: str) -> None:
        super().__init__(f"{column} is NOT NULL, and was given no value")
        #: With its table: `mail_outbox.campaign`.
        self.column = column


class SchemaError(DatabaseError):
    """The tables are not what this version works on."""


class NoDatabase(SchemaError):
    """There is no database where one was looked for."""


class InvalidRequest(HomingError):
    """What a caller asked for is malformed."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PayloadTooLarge(InvalidRequest):
    """The body is too long to be read."""


class WrongMediaType(InvalidRequest):
    """The body is not what its place takes."""


class Forbidden(HomingError):
    """Whoever asks may not."""


class NotAllowed(HomingError):
    """The message is in a state in which that cannot be done."""


class NotFound(HomingError):
    """There is no such message."""


class RateLimited(HomingError):
    """Called too often."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Busy(RateLimited):
    """As much as there is room for is under way."""
