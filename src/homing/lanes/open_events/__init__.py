"""open_events: a seat opens, and each subscriber of the section gets one mail.

The contract (`docs/contracts.md`, NTF; `docs/open_events.md`): a producer writes the event and a row of
`open_event_notifications` for each subscriber; workers claim rows that are `pending` and unlocked, build the
job of the specification, send, and end them. The tables may be another program's, which writes to them at the
same time and may run workers of its own: nothing but the contract's columns tells it what is going on.

    pending ── a worker sends ──→ sent
       ↑  └─────────────────────→ pending, due again after the schedule    (fanout_attempts + 1)
       │  └─────────────────────→ pending, due when the window opens       (uncharged)
       │  └─────────────────────→ skipped     (nobody can act on it: unsubscribed, no such address)
       │  └─────────────────────→ failed      (an operator should look, or no attempts left)
       │  └─────────────────────→ expired     (the event is too old to be news)
       └── requeue ← skipped, failed, expired
"""
