"""Everything that can be pruned, in the order in which it is."""

from __future__ import annotations

from typing import Final

from homing.db import Database, load_queries
from homing.db.attempts import Attempts
from homing.db.pruning import PrunableRows, ended_rows
from homing.engine.prune import Prunable
from homing.lanes.dispatch_jobs.pruning import prunable_jobs
from homing.lanes.email_log.log import attempts_of_emails
from homing.lanes.mail_outbox.outbox import attempts_of_mails
from homing.lanes.open_events.pruning import prunable_notifications

#: No message, and the proof of who did what: it goes only where it is named.
AUDIT: Final = "audit"


def prunable_tables(database: Database, jobs_database: Database, notify_database: Database) -> list[Prunable]:
    def rows(lane: str, *states: str, attempts: Attempts) -> PrunableRows:
        queries = load_queries(f"homing.lanes.{lane}", database.dialect)
        return PrunableRows(database, queries, lane, states, attempts=attempts)

    mails, emails = attempts_of_mails(database), attempts_of_emails(database)
    ended = ("sent", "failed", "cancelled", "expired")
    return [
        rows("mail_outbox", *ended, attempts=mails),
        rows("email_log", "Sent", "Dead", attempts=emails),
        *prunable_jobs(jobs_database),
        *prunable_notifications(notify_database),
        *_of_our_own(database),
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
