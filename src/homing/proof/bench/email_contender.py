"""What one contender of the email race has to do in one round, and how that round is measured."""

from __future__ import annotations

from homing.proof.bench.child import load
from homing.proof.bench.contender import Job, Round, measure
from homing.proof.bench.webhook_contender import cpu_seconds


class EmailJob(Job, frozen=True):
    """A mail job whose messages lie in a broker."""

    broker_url: str


async def run_round(job: EmailJob) -> Round:
    """In a process of its own."""
    return await measure(load(job.contender)(job), job.contender, job.mails, job.postgres_url, cpu_seconds)
