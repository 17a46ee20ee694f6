"""The operator's desk of one process: what each lane can tell and do, as one."""

from __future__ import annotations

from homing.desk.bulk_story import BulkStory
from homing.desk.desk import Desk, WhyIdle
from homing.lanes.dispatch_jobs.desk import JobDesk
from homing.lanes.email_log.desk import EmailDesk
from homing.lanes.mail_outbox.desk import MailDesk
from homing.lanes.open_events.desk import NotificationDesk
from homing.messages.model import LaneDesk, LaneName
from homing.parts.emails import Emails
from homing.parts.ground import Ground
from homing.parts.jobs import Jobs
from homing.parts.mails import Mails
from homing.parts.notifications import Notifications


def make_desk(
    ground: Ground,
    mails: Mails,
    jobs: Jobs,
    emails: Emails,
    notifications: Notifications,
    *,
    why_idle: WhyIdle | None = None,
) -> Desk:
    settings = ground.settings
    templates = ground.templates()
    lanes: dict[LaneName, LaneDesk] = {
        "mail_outbox": MailDesk(mails.outbox, templates, settings.mail_from),
        "dispatch_jobs": JobDesk(jobs.store, settings.jobs_header_prefix),
        "email_log": EmailDesk(emails.log, templates, settings.mail_from),
        "open_events": NotificationDesk(notifications.rows, notifications.lane),
    }
    return Desk(lanes, why_idle, BulkStory(ground.database))
