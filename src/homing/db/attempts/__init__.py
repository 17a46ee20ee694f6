"""The attempts that did not deliver, kept for whoever asks later what was tried.

A row of a lane's table holds its last attempt only. One that fails is kept in `homing_attempt` as well, in
the transaction that settles it; one that delivers costs nothing, for its row says by whom and how fast.
What never reached the other side is no attempt: a mail that waits for a provider all day leaves nothing.
"""

from homing.db.attempts.attempts import Attempts, Untold

__all__ = ["Attempts", "Untold"]
