"""Logs, metrics and traces of one process. Apart from the other parts: a short command needs none of them."""

from __future__ import annotations

import logging

from homing.settings import Settings
from homing.telemetry import Telemetry, make_logger
from homing.tracing import make_tracing


def make_telemetry(settings: Settings) -> Telemetry:
    logger = make_logger(settings.log_format, logging.getLevelNamesMapping()[settings.log_level.upper()])

    def warn(words: str) -> None:
        telemetry.log.warning("tracing.failed", error=words)

    telemetry = Telemetry(logger, tracing=make_tracing(settings.tracing, settings.trace_sample, warn))
    return telemetry
