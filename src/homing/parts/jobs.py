"""The lane `dispatch_jobs`: webhooks, their credentials and targets, the router where there is a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from homing.brokers.base import Broker
from homing.brokers.open import open_broker
from homing.brokers.router import Router
from homing.brokers.router_config import default_config, queue_refusal
from homing.db import Database, Row
from homing.errors import SettingsError
from homing.lanes.dispatch_jobs.credentials.signing import Secrets, UnreadableSecrets
from homing.lanes.dispatch_jobs.credentials.store import Credentials, NotListed
from homing.lanes.dispatch_jobs.dead_letters import make_dead_letters, make_queued_letters
from homing.lanes.dispatch_jobs.jobs import CHANNEL, Breaking, DispatchJobs
from homing.lanes.dispatch_jobs.lane import DispatchJobsLane, Strategies
from homing.lanes.dispatch_jobs.mediating import DirectMediator, HttpMediator, Mediator, open_own_sender
from homing.lanes.dispatch_jobs.processing import Processing
from homing.lanes.dispatch_jobs.queueing import QueueingLane, UnsentJobs
from homing.lanes.dispatch_jobs.router_store import RouterConfigs
from homing.lanes.dispatch_jobs.target import Targets
from homing.lanes.dispatch_jobs.tokens import ProcessTokens, open_tokens
from homing.lanes.dispatch_jobs.tsid import number_of, text_of
from homing.lines import Line
from homing.parts.ground import Ground
from homing.senders.egress import EgressGuard, origin_of, parse_networks
from homing.senders.webhook import WebhookSender
from homing.settings import Settings, is_loopback
from homing.vault import open_vault

#: Seconds that a stop waits until what attempts said of targets is written.
_LAST_VERDICTS = 2.0
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class Jobs:
    def __init__(self, ground: Ground, database: Database) -> None:
        settings = ground.settings
        self._ground, self._settings = ground, settings
        self.database = database
        self.egress = egress_guard(settings)
        self.sender = WebhookSender(
            self.egress,
            connections=settings.jobs_batch,
            connections_per_host=settings.jobs_batch,
            on_refused=self._note_refused,
        )
        targets = Targets(slots=settings.jobs_batch, connections=settings.jobs_connections_per_target)
        self.broker = self._open_broker()
        self.store = self._open_store(targets)
        self.lane = self._open_lane(targets)
        # All that is held is under way or waits for its turn at its target: none waits behind another target.
        self.line = self._line(self.lane, self.store, party=lambda claim: claim.item.target)
        self.processing = Processing(
            self.store,
            self.line.deliverer,
            window=None if self.broker is None else settings.jobs_requeue_seconds,
        )
        self.router_configs = RouterConfigs(
            ground.database,
            default_config(settings.jobs_queue, settings.jobs_pool_concurrency),
            self.broker.name if self.broker is not None else None,
        )
        #: Where no broker is set, jobs are taken from the database, and their messages are sent nowhere.
        self.queueing = None if self.broker is None else self._queueing_line(self.broker)

    def _note_refused(self, host: str, reason: str) -> None:
        self._ground.telemetry.log.warning("target.refused", host=host, reason=reason)

    # ── the lane ─────────────────────────────────────────────────────────────────────────────────

    def _open_store(self, targets: Targets) -> DispatchJobs:
        settings = self._settings
        return DispatchJobs(
            self.database,
            targets,
            owner=self._ground.owner,
            lease_seconds=settings.jobs_lease_seconds,
            breaking=Breaking(
                settings.jobs_breaker_failures,
                settings.jobs_breaker_seconds,
                settings.jobs_breaker_max_seconds,
            ),
            telemetry=self._ground.telemetry,
            dead_letter=make_dead_letters(
                settings.jobs_dead_letter_url,
                settings.jobs_dead_letter_credentials_id,
                self.egress.url_refusal,
            ),
            queued_letters=self._queued_letters(),
        )

    def _open_lane(self, targets: Targets) -> DispatchJobsLane:
        settings = self._settings
        return DispatchJobsLane(
            self.store,
            targets,
            self._secrets,
            self.sender,
            strategies=Strategies(settings.jobs_backoff_base_seconds, settings.jobs_backoff_max_seconds),
            lease_seconds=settings.jobs_lease_seconds,
            timeout_seconds=settings.jobs_timeout_seconds,
            reject_4xx=settings.reject_4xx,
            header_prefix=f"{settings.jobs_header_prefix}-",
            tracing=self._ground.telemetry.tracing,
        )

    def _line(self, lane: Any, rows: Any, **options: Any) -> Line:
        slots = self._settings.jobs_batch
        return self._ground.line(
            lane, rows, CHANNEL, concurrency=slots, slots=slots, database=self.database, **options
        )

    def _queued_letters(self) -> Callable[[Sequence[Row]], Awaitable[list[int]]] | None:
        letters = make_queued_letters(self._settings.jobs_dead_letter_url, lambda: self.broker)
        if letters is not None and self.broker is None:
            raise SettingsError(
                "HOMING_JOBS_DEAD_LETTER_URL names a queue, and dispatch jobs have no broker; "
                "set HOMING_JOBS_BROKER_URL"
            )
        return letters.send if letters is not None else None

    # ── credentials ──────────────────────────────────────────────────────────────────────────────

    @cached_property
    def credentials(self) -> Credentials:
        """Made when it is first asked for: who sends no webhooks needs no key."""
        vault = open_vault(self._settings.encryption_key, self._settings.database_url)
        prefix = self._settings.jobs_header_prefix
        return Credentials(self.database, vault, header_prefix=prefix, on_added=self._note_added)

    def _note_added(self, id: int, origins: Collection[str]) -> None:
        log = self._ground.telemetry.log
        log.info("credentials.targets_added", credentials=text_of(id), targets=sorted(origins))

    def _secrets(self, id: int, url: str) -> Awaitable[Secrets | UnreadableSecrets | NotListed | None]:
        """What a setting sends somewhere may go there, whoever lists what."""
        if (id, origin_of(url)) in self._set_by_operator:
            return self.credentials.get(id)
        return self.credentials.for_url(id, url)

    @cached_property
    def _set_by_operator(self) -> frozenset[tuple[int | None, str | None]]:
        settings = self._settings
        return frozenset(
            (number_of(id), origin_of(url))
            for id, url in (
                (settings.jobs_dead_letter_credentials_id, settings.jobs_dead_letter_url),
                (settings.alert_webhook_credentials_id, settings.alert_webhook_url),
            )
            if id is not None and url is not None
        )

    def _admit(self, id: int, origins: Collection[str], adds: bool) -> Awaitable[frozenset[str] | None]:
        return self.credentials.admit(id, origins, adds=adds)

    # ── the router ───────────────────────────────────────────────────────────────────────────────

    def _open_broker(self) -> Broker | None:
        url = jobs_broker_url(self._settings)
        if url is None:
            return None
        broker = open_broker(url, self._ground.telemetry)
        if why := queue_refusal(self._settings.jobs_queue, broker.name):
            raise SettingsError(f"HOMING_JOBS_QUEUE: {why}")
        return broker

    def _queueing_line(self, broker: Broker) -> Line:
        settings = self._settings
        unsent = UnsentJobs(self.store, settings.jobs_requeue_seconds)
        lane = QueueingLane(
            unsent,
            broker,
            self.router_configs,
            lambda: self.process_tokens,
            default_queue=settings.jobs_queue,
            process_url=lambda: self.process_url,
            visibility=settings.jobs_visibility_seconds,
            window=settings.jobs_requeue_seconds,
            tracing=self._ground.telemetry.tracing,
        )
        return self._line(lane, unsent)

    @cached_property
    def process_tokens(self) -> ProcessTokens:
        return open_tokens(self._settings.encryption_key, self._settings.database_url)

    @property
    def process_url(self) -> str:
        """Where a router has jobs processed."""
        if self._settings.jobs_process_url is not None:
            return self._settings.jobs_process_url
        return f"{self._ground.base_url}/api/dispatch/process"

    @cached_property
    def router(self) -> Router | None:
        """What takes jobs from a broker's queues; None where there is no broker."""
        if self.broker is None:
            return None
        tracing = self._ground.telemetry.tracing
        own: DirectMediator | HttpMediator = HttpMediator(self._own_sender, tracing)
        if self._settings.jobs_mediation == "direct":
            own = DirectMediator(self.processing, self.process_tokens)
        return Router(
            self.broker,
            Mediator(lambda: self.process_url, own, HttpMediator(self.sender, tracing)),
            self.router_configs.read,
            self._ground.telemetry,
            visibility=self._settings.jobs_visibility_seconds,
        )

    @cached_property
    def _own_sender(self) -> WebhookSender:
        return open_own_sender(self._settings.jobs_batch)

    async def _knows_queue(self, url: str) -> bool:
        if self.broker is None:
            return True
        known = [queue.queue_uri for queue in (await self.router_configs.recent()).queues]
        return await self.broker.find(url, [self._settings.jobs_queue, *known]) is not None

    # ── in and out ───────────────────────────────────────────────────────────────────────────────

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.lanes.dispatch_jobs.api import ROUTES, job_dependencies
        from homing.lanes.dispatch_jobs.credentials.api import CredentialsApi
        from homing.lanes.dispatch_jobs.orders import Rules
        from homing.lanes.dispatch_jobs.router_api import ROUTES as ROUTER_ROUTES
        from homing.lanes.dispatch_jobs.target_look import TargetLook

        return [*ROUTES, *ROUTER_ROUTES, CredentialsApi], {
            **job_dependencies(
                self.store,
                self._ground.telemetry,
                Rules(self.egress.url_refusal, f"{self._settings.jobs_header_prefix}-"),
                admit=self._admit,
                probe=self.lane.probe,
                known_queue=self._knows_queue,
            ),
            "job_processing": self.processing,
            "process_tokens": self.process_tokens,
            "router_configs": self.router_configs,
            "credentials": self.credentials,
            "target_look": TargetLook(self.store),
        }

    async def close(self) -> None:
        await self.sender.close()
        if "_own_sender" in self.__dict__:
            await self._own_sender.close()
        if self.broker is not None:
            await self.broker.close()

    async def judged(self) -> None:
        """What attempts said of targets is written, if the database takes it soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_VERDICTS):
                await self.store.judged()


def jobs_broker_url(settings: Settings) -> str | None:
    """`memory://` is the default of all lanes, and means no broker unless it was said of this one."""
    if settings.jobs_broker_url is not None:
        return settings.jobs_broker_url
    return None if settings.broker_url.startswith("memory:") else settings.broker_url


def egress_guard(settings: Settings) -> EgressGuard:
    """Who serves only loopback may be trying things out: http and loopback are allowed, unless forbidden."""
    public = settings.base_url is not None and not is_loopback(urlsplit(settings.base_url).hostname or "")
    local = is_loopback(settings.host) and settings.allow_http is not False and not public
    allowed = parse_networks(settings.egress_allow)
    networks = [*allowed, *(_LOOPBACK if local else ())]
    return EgressGuard(networks, allow_http=bool(settings.allow_http) or local)
