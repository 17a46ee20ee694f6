"""The values that the engine passes around.

    claim what is due  →  attempt the effect  →  decide  →  settle, if it is still mine
         Claim               Outcome            Settlement        True / False

An `Outcome` says what happened, a `Settlement` what will be written. Both are values: a refused
mail raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

Item = TypeVar("Item")

#: Seconds that never run backwards; deadlines and durations are measured with it.
Monotonic: TypeAlias = Callable[[], float]
#: A number from 0 up to 1, as `random.random` gives it.
Rand: TypeAlias = Callable[[], float]


class Claim(Struct, Generic[Item], frozen=True, gc=False):
    """One row that is ours until its lease ends."""

    id: int
    #: `claim_seq` of the row: it only ever rises, so it tells this claim from every other.
    fence: int
    #: Failed attempts that were charged before this one.
    attempts: int
    #: What is to be delivered, in the lane's own words.
    item: Item
    #: How often the row came back uncharged since it was last charged.
    deferrals: int = 0
    #: Seconds from its creation to this claim, or from when it was first due if that is later; None where
    #: nobody knows. Both times are the database's, so that no clock of ours has to agree with it.
    age: float | None = None
    #: The trace that the message belongs to, as its producer wrote it: it may be nonsense.
    traceparent: str | None = None
    #: Bytes that did not come with the claim, since they are many, and are read for the attempt.
    size: int = 0


class Failure(Struct, frozen=True, gc=False):
    """Why an attempt did not deliver."""

    #: A short word for grouping and for metrics labels, such as `network_error`.
    code: str
    #: One line for a person.
    message: str = ""
    #: Of a bug of ours, where it struck; nothing secret in it.
    trace: str = ""


#: Why a claim ended of which nobody knows whether its effect took place.
WORKER_LOST = Failure("worker_died", "outcome unknown: worker lost")


class Delivered(Struct, frozen=True, tag=True, gc=False):
    """The effect took place."""

    report: Any = None


class Retry(Struct, frozen=True, tag=True, gc=False):
    """It did not work now, and may work later."""

    failure: Failure
    #: Seconds that the other side asked us to wait.
    after: float | None = None
    #: False when the other side never looked at this message: that costs it no attempt.
    charged: bool = True
    report: Any = None


class Reject(Struct, frozen=True, tag=True, gc=False):
    """It will never work."""

    failure: Failure
    report: Any = None


class Skip(Struct, frozen=True, tag=True, gc=False):
    """There is nothing to do any more: expired, unsubscribed."""

    failure: Failure
    report: Any = None


Outcome: TypeAlias = Delivered | Retry | Reject | Skip


class Complete(Struct, frozen=True, tag=True, gc=False):
    """Ends well."""

    report: Any = None
    #: How long the attempt took.
    millis: int | None = None


class RetryIn(Struct, frozen=True, tag=True, gc=False):
    """Due again after a delay, which the database adds to its own now."""

    delay: float
    failure: Failure
    charged: bool = True
    report: Any = None
    millis: int | None = None


class Bury(Struct, frozen=True, tag=True, gc=False):
    """Ends badly: refused for good, or no attempts left."""

    failure: Failure
    #: False when the attempt itself was not charged, as for one that was never made.
    charged: bool = True
    report: Any = None
    millis: int | None = None


class Discard(Struct, frozen=True, tag=True, gc=False):
    """Ends without an attempt."""

    failure: Failure
    report: Any = None


Settlement: TypeAlias = Complete | RetryIn | Bury | Discard
