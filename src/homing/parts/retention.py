"""Everything that can be pruned, in the order in which it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from homing.db import Database, load_queries
from homing.db.attempts import Attempts
from homing.db.pruning import PrunableRows, ended_rows, orphaned_attempts
from homing.engine.prune import Prunable
from homing.lanes.dispatch_jobs.pruning import prunable_jobs
from homing.lanes.email_log.log import attempts_of_emails
from homing.lanes.mail_outbox.outbox import attempts_of_mails
from homing.lanes.open_events.pruning import prunable_notifications

#: No message, and the proof of who did what: it goes only where it is named.
AUDIT: Final = "audit"
MAILS_ENDED: Final = ("sent", "failed", "cancelled", "expired")
EMAILS_ENDED: Final = ("Sent", "Dead")


def prunable_tables(database: Database, jobs_database: Database, notify_database: Database) -> list[Prunable]:
    return [
        *_of_mails(database, "mail_outbox", MAILS_ENDED, attempts_of_mails(database)),
        *_of_mails(database, "email_log", EMAILS_ENDED, attempts_of_emails(database)),
        *prunable_jobs(jobs_database),
        *prunable_notifications(notify_database),
        *_of_our_own(database),
    ]


def _of_mails(database: Database, lane: str, ended: Sequence[str], attempts: Attempts) -> list[Prunable]:
    queries = load_queries(f"homing.lanes.{lane}", database.dialect)
    return [
        PrunableRows(database, queries, lane, ended, attempts=attempts),
        orphaned_attempts(attempts, ended),
    ]


def _of_our_own(database: Database) -> list[Prunable]:
    return [
        ended_rows(
            database, "caught_mail", ("caught",),
            table="homing_caught_mail", state="'caught'", ended="caught_at", made="caught_at",
        ),
        ended_rows(
            database, "bulk_runs", ("done", "cancelled", "failed"),
            table="homing_bulk_run", state="state", ended="finished_at", made="created_at",
        ),
        ended_rows(
            database, "alerts", ("told",),
            table="homing_alert", state="'told'", ended="CASE WHEN handed_over THEN at END", made="at",
        ),
        ended_rows(
            database, AUDIT, ("done", "refused", "failed"),
            table="homing_audit", state="outcome", ended="at", made="at",
        ),
    ]  # fmt: skip
