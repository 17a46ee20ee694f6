"""dispatch_credentials: what webhooks are signed and authorized with.

Secrets are sealed at rest (`homing.vault`), shown once when we made them and never again. Workers read them
through a cache of seconds. A rotation keeps the previous secrets for a grace time: both sign
`webhook-signature`, while the bearer token and the specification's header, which have room for one, stay the
previous ones until it ends. One end counts for all secrets of a row.
"""

from homing.lanes.dispatch_jobs.credentials.orders import CreateCredentials, RotateCredentials
from homing.lanes.dispatch_jobs.credentials.signing import Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.store import Credentials, Issued, Rewrapped

__all__ = [
    "CreateCredentials",
    "Credentials",
    "Issued",
    "Rewrapped",
    "RotateCredentials",
    "Secrets",
    "UnreadableSecrets",
]
