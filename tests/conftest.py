"""What all tests share: databases of their own, on real servers that one run starts and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default
from hypothesis import HealthCheck, settings
from tests.lasting import LastingMongoDb
from tests.order import begin_with_the_long_ones

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.testing.components.mongodb import MongoDb, MongoDbServer, shared_mongodb, start_mongodb
from homing.testing.components.obtain import Missing, find_program
from homing.testing.components.postgres import Postgres, PostgresServer, shared_postgres, start_postgres
from homing.testing.components.processes import hold, make_home, wait_until
from homing.testing.components.rabbitmq import RabbitMqServer, start_rabbitmq
from homing.testing.components.shared import shared_url
from homing.testing.components.smtp import SmtpSink, find_smtp_sink
from homing.testing.components.sqs import start_sqs

#: The loop that tests run on, and the end of those that hang in it.
pytest_plugins = ("tests.hang", "tests.held")

Component = TypeVar("Component")

YES = frozenset({"1", "true"})
IN_CI = os.environ.get("CI", "").lower() in YES
#: With this some tests are as large as they can be, without it as large as their proof needs.
IN_FULL = os.environ.get("HOMING_TEST_FULL", "").lower() in YES
RUN_DIRECTORY = pytest.StashKey[Path]()

# A busy machine is no bug, so no example has a deadline, and none is too slow to be made. In CI the same
# examples run every time.
PATIENT: Mapping[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", **PATIENT)
settings.register_profile("ci", **PATIENT, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "dev")


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Every client of httpx reads all authorities of the system, in 20 ms, to ask a loopback address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _clients_are_patient() -> Iterator[None]:
    """After five seconds httpx gives up, where nothing else is said: a busy machine may take longer."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "read", "write", "pool"):
            patch.setattr(DEFAULT_TIMEOUT_CONFIG, name, 60.0)
        yield


# --- one run, its servers ----------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder through which the processes of one run share servers, and hold them."""
    given = getattr(config, "workerinput", {}).get("run_directory")
    directory = Path(given) if given else make_home("homing-run-", None)
    config.stash[RUN_DIRECTORY] = directory
    holders = hold(directory / "holders")
    config.add_cleanup(lambda: _leave(directory, holders.close, is_worker=given is not None))


def pytest_collection_finish() -> None:
    """All tests are made, and stay: without this the collector of garbage takes a quarter of their time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where the run's folder is."""
    node.workerinput["run_directory"] = str(node.config.stash[RUN_DIRECTORY])


def _leave(directory: Path, let_go: Callable[[], None], *, is_worker: bool) -> None:
    let_go()
    if is_worker:
        return
    homes = [Path(home.read_text()) for home in directory.glob("*.home")]
    wait_until(lambda: not any(home.exists() for home in homes), "stopping the servers of the run")
    shutil.rmtree(directory, ignore_errors=True)


def make_tables(url: str, packages: Collection[str]) -> None:
    # Not at the top: most tests can do without the lane.
    from homing.lanes.dispatch_jobs.key_index import replace_key_index

    async def make() -> None:
        database = connect(url)
        await migrate(database, load_migrations(packages, database.dialect))
        if "homing.lanes.dispatch_jobs" in packages:
            await replace_key_index(database)
        await database.close()

    # A thread of its own, because a test's event loop may be running.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, make()).result()


def require(component: Component | Missing) -> Component:
    """Skip the test without the component, with a line that says so; in CI that is a failure."""
    if not isinstance(component, Missing):
        return component
    if IN_CI:
        pytest.fail(str(component), pytrace=False)
    pytest.skip(str(component))


def require_program(name: str, package: str = "") -> str:
    """The path of a program, obtained from a Debian package where it is missing, as `require` has it."""
    return require(find_program(name, package))


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Postgres:
    """The server that all tests of the run share. It forgets in a crash; do not restart it."""
    return require(shared_postgres(pytestconfig.stash[RUN_DIRECTORY]))


@pytest.fixture
def private_postgres() -> Iterator[PostgresServer]:
    """A durable server for one test, which may stop, crash and restart it."""
    with require(start_postgres()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """An empty database, gone after the test even if somebody is still connected."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Postgres) -> Iterator[str]:
    """The name of a database with all tables, which is copied in a fraction of the time that they take."""
    # Not at the top: most tests can do without the whole of Homing.
    from homing.app import MIGRATED

    url = postgres_server.create_database()
    make_tables(url, MIGRATED)
    yield url.rpartition("/")[2]
    postgres_server.drop_database(url)


@pytest.fixture
def migrated_postgres_url(postgres_server: Postgres, postgres_template: str) -> Iterator[str]:
    """For tests that would migrate it first of all; `migrate` finds nothing to do."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'homing.db'}"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables."""
    from homing.app import MIGRATED

    path = tmp_path_factory.mktemp("template") / "homing.db"
    make_tables(f"sqlite:///{path}", MIGRATED)
    return path


@pytest.fixture
def migrated_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """For tests that would migrate it first of all; `migrate` finds nothing to do."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'homing.db')}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The test runs twice, on an empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def mongodb_server(pytestconfig: pytest.Config) -> MongoDb:
    """The server that all tests of the run share. It lies in memory; do not restart it."""
    return require(shared_mongodb(pytestconfig.stash[RUN_DIRECTORY]))


@pytest.fixture
def private_mongodb() -> Iterator[MongoDbServer]:
    """A durable server for one test, which may stop, crash and restart it."""
    with require(start_mongodb()) as server:
        yield server


@pytest.fixture
def mongodb_url(mongodb_server: MongoDb) -> Iterator[str]:
    """A database that is not there yet, gone after the test."""
    url = mongodb_server.create_database()
    yield url
    mongodb_server.drop_database(url)


@pytest.fixture(scope="session")
def lasting_mongodb(mongodb_server: MongoDb) -> Iterator[LastingMongoDb]:
    url = mongodb_server.create_database()
    make_tables(url, ["homing.lanes.dispatch_jobs"])
    with LastingMongoDb(url) as database:
        yield database
    mongodb_server.drop_database(url)


@pytest.fixture
def migrated_mongodb_url(lasting_mongodb: LastingMongoDb) -> Iterator[str]:
    """A database with the jobs' collections and indexes, and nothing in them: they take long to make."""
    yield lasting_mongodb.url
    lasting_mongodb.restore()


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def jobs_database_url(request: pytest.FixtureRequest) -> str:
    """Where jobs may be: the test runs on an empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def postfix_sink() -> Iterator[SmtpSink]:
    """Postfix's `smtp-sink`, which accepts every mail and keeps none."""
    with SmtpSink(require(find_smtp_sink())) as sink:
        yield sink


@pytest.fixture(scope="session")
def rabbitmq_url(pytestconfig: pytest.Config) -> str:
    """The broker that all tests of the run share: queues of one's own names, and no restarts."""
    return require(shared_url(pytestconfig.stash[RUN_DIRECTORY], "rabbitmq", start_rabbitmq))


@pytest.fixture(scope="module")
def private_rabbitmq() -> Iterator[RabbitMqServer]:
    """A broker for the tests of one file, which may stop, kill and restart it."""
    with require(start_rabbitmq()) as server:
        yield server


@pytest.fixture(scope="session")
def sqs_url(pytestconfig: pytest.Config) -> str:
    """The SQS that all tests of the run share: queues of one's own names."""
    return require(shared_url(pytestconfig.stash[RUN_DIRECTORY], "sqs", start_sqs))


# --- which tests run ---------------------------------------------------------------------------

SERVER_FIXTURES = frozenset(
    {"postgres_server", "private_postgres", "postfix_sink", "rabbitmq_url", "private_rabbitmq", "sqs_url"}
) | {"mongodb_server", "private_mongodb"}
#: PyMongo forgets to close a socket that it was about to connect when its client is closed.
NEVER_CONNECTED = r"ignore:unclosed <socket.socket .* laddr=\('0.0.0.0', 0\)>:ResourceWarning"
SERVER_PARAMETERS = frozenset({"postgres", "rabbitmq", "sqs", "mongodb"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-servers", action="store_true", help="leave out the tests that need a server started"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--without-servers"):
        left_out = [item for item in items if needs_server(item)]
        items[:] = [item for item in items if not needs_server(item)]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if "mongodb" in item.nodeid or "mongodb_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings(NEVER_CONNECTED))
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = begin_with_the_long_ones(items, workers, lambda item: item.nodeid.partition("::")[0])


def needs_server(item: pytest.Item) -> bool:
    """By its fixtures, or by a parameter that names a server."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = any(isinstance(value, str) and value in SERVER_PARAMETERS for value in parameters)
    return named or not SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return not_skipped_in_ci(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return not_skipped_in_ci(report)


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def not_skipped_in_ci(report: Report) -> Report:
    """A test that was expected to fail has run; any other skip would prove nothing, unseen."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI=true allows no skips: {reason}"
    return report
