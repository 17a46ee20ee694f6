"""dispatch_job: a row becomes a signed webhook.

The contract (`docs/contracts.md`, JOB): whoever creates a job, over HTTP or in the database, has ordered a
POST of `payload` to `target_url`, signed with the secrets of its credentials. Workers claim jobs that are
open and due, fairly among targets, post them, write down each attempt, and end them.

    PENDING → IN_PROGRESS → COMPLETED        (2xx)
       │           ├──────→ FAILED → …       (to be tried again, by its retry strategy)
       │           └──────→ ERROR            (no attempts left, 410, expired)
       ├── requeue ← ERROR, CANCELLED
       └──→ CANCELLED ← FAILED

A target is scheme, host, port and credentials. One that asks us to wait, that keeps failing, or that has
reached its limits holds back its own jobs and no others; they wait uncharged. Jobs of an ordered group are
delivered one at a time, in the order in which they were created.
"""
