"""The named queries of `postgres.sql` and `sqlite.sql`, for MongoDB: each is a function of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homing.lanes.dispatch_jobs import (
    mongo_alerts,
    mongo_claims,
    mongo_desk_dead,
    mongo_groups,
    mongo_jobs,
    mongo_leases,
    mongo_overview,
    mongo_prune,
    mongo_settles,
    mongo_target_look,
    mongo_targets,
)
from homing.lanes.dispatch_jobs.mongo_documents import Operation

_BY_MODULE: Mapping[object, tuple[str, ...]] = {
    mongo_claims: (
        "due_targets", "oldest_due", "held_back", "oldest_claimable", "lock_targets", "claim", "probes",
        "claim_one", "lock_target_of", "claim_these", "claim_one_limited", "hold_up", "claim_lost",
        "payload",
    ),
    mongo_settles: ("settle", "confirm", "renew", "release", "rescue", "lock_jobs", "record_late"),
    mongo_groups: ("lock_groups", "promote", "stuck_groups", "ordered_groups", "group_head"),
    mongo_jobs: (
        "insert_jobs", "by_idempotency_key", "refuse_conflicts", "get", "attempts", "listed_jobs", "cancel",
        "requeue", "send_now", "expired", "expire", "dead_letters", "dead_letters_sent", "sweep_attempts",
        "postpone_unsent", "claim_unsent", "settle_unsent", "seen_in_queue", "unsent",
    ),
    mongo_targets: (
        "note_targets", "judge_targets", "limit_target", "replace_limits", "pause_target", "resume_target",
        "targets", "target", "held_targets",
    ),
    mongo_target_look: ("seen_targets", "target_loads", "target_results", "target_last_job"),
    mongo_leases: ("leases", "end_leases"),
    mongo_alerts: ("has_deaths", "mark_deaths", "marked_deaths", "drop_deaths", "failing_targets"),
    mongo_desk_dead: ("dead_codes", "dead_words", "count_states"),
    mongo_prune: ("prune_window", "prune_survey", "prune_candidates", "prune"),
    mongo_overview: (
        "counts", "success_by_source", "duration_by_type", "needs_attention", "count_attention",
        "dead_groups",
    ),
}  # fmt: skip

QUERIES: Final[Mapping[str, Operation]] = {
    **{name: getattr(module, name) for module, names in _BY_MODULE.items() for name in names},
    "try_lock_groups": mongo_groups.lock_groups,
    "make_attempt_weeks": mongo_jobs.nothing_to_make,
    "sweep_metadata": mongo_jobs.nothing_to_sweep,
    "sweep_headers": mongo_jobs.nothing_to_sweep,
}
