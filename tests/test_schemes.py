"""The scheme of a URL may be written in capitals, whatever it opens; what follows is not changed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from homing.brokers.open import open_broker
from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.senders.open import open_sender
from homing.senders.providers import ApiSender, check_provider
from homing.settings import load_settings
from homing.telemetry import Telemetry


def capitals(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme.capitalize()}{mark}{rest}"


@pytest.mark.parametrize(
    "url", ["SendGrid://KEY@", "SES://eu-west-1", "Postmark://T@", "MailGun://:K@example.com"]
)
async def test_a_provider(url: str, sqlite_url: str) -> None:
    database = connect(sqlite_url)
    sender = open_sender(url, database, connections=1)
    assert isinstance(sender, ApiSender)
    assert sender.name == url.partition(":")[0].lower()
    await sender.close()
    await database.close()


async def test_a_check_of_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(_self: ApiSender) -> None:
        return None

    monkeypatch.setattr(ApiSender, "check", check)
    assert await check_provider("SendGrid://KEY@") == (
        "mail provider sendgrid",
        True,
        "answers, and takes the key",
    )


@pytest.mark.parametrize("url", ["Catch://", "Memory://", "SMTP://relay.example", "SMTPS://relay.example"])
async def test_another_sender(url: str, sqlite_url: str) -> None:
    database = connect(sqlite_url)
    await open_sender(url, database, connections=1).close()
    await database.close()


async def test_a_database(jobs_database_url: str) -> None:
    database = connect(capitals(jobs_database_url))
    try:
        assert await migrate(database, load_migrations(["homing.lanes.dispatch_jobs"], database.dialect))
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("url", "name"),
    [("Memory://", "memory"), ("AMQP://guest@127.0.0.1/", "rabbitmq"), ("SQS://127.0.0.1:1?region=x", "sqs")],
)
async def test_a_broker(url: str, name: str) -> None:
    broker = open_broker(url, Telemetry(registry=CollectorRegistry()))
    assert broker.name == name
    await broker.close()


def test_settings_know_them_in_small_letters_only_and_keep_secrets() -> None:
    settings = load_settings(
        {
            "database_url": "PostgreSQL://Ann:Pa,SMTP:ss@DB.example/Homing",
            "mail_url": "SendGrid://:Key@, SMTPS://Ann:SECRET@relay.example",
            "broker_url": "AMQP://Guest@host/",
            "email_broker_url": "Memory://",
        },
        environ={},
    )
    assert settings.database_url == "postgresql://Ann:Pa,SMTP:ss@DB.example/Homing"
    assert settings.mail_url == "sendgrid://:Key@,smtps://Ann:SECRET@relay.example"
    assert settings.broker_url == "amqp://Guest@host/"
    assert settings.email_broker_url == "memory://"
