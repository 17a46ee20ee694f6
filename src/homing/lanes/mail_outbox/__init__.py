"""mail_outbox: a row in a table becomes a mail.

The contract (`docs/contracts.md`, OUT and API): whoever inserts a recipient, a subject and a body has
ordered a mail. Dispatchers claim rows that are `queued` and due, in the order of `next_attempt_at, id`,
mark them `dispatching`, send, and end them as `sent`, or as `failed` when the attempts are used up. A
failed attempt adds 1 to `retry_count` and waits `min(base·2^n, max)·(1 ± jitter·rand)` seconds.
`POST /internal/dispatch` claims one batch and sends it.

    queued → dispatching → sent
       ↑          ├──────→ queued       (retry, release, rescue)
       │          └──────→ failed       (refused for good, or no attempts left)
       ├── requeue ← failed, cancelled, expired
       └──→ cancelled, expired
"""
