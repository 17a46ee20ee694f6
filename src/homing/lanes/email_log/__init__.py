"""email_log: a row becomes a message in a queue, and the message a mail.

The contract (`docs/contracts.md`, RTY; `docs/email_log.md`): two stages work on one table. The scheduler
claims what is due, publishes `{"EmailId": …, "MessageKey": …}` to `email.dispatcher.send`, and writes down
that it did. The sender takes a message, claims the row that it names, sends, settles, and then acknowledges.
A message is a hint: the row alone says whether there is something to send, so one that comes twice, late or
never does no harm.

    Pending ──── a consumer claims, sends ───→ Sent
       ↑  └───────────────────────────────────→ Failed, next_attempt_at = now + Backoff(attempt_count)
       │  └───────────────────────────────────→ Dead      (refused for good, or no attempts left)
    RetryQueued ←── a scheduler claims ──── Failed, when due
       ↑────────────────────────────────── Pending, when never queued, or its message is lost
    Dead, Failed ── requeue → Pending
"""
