"""The results, for people."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_plus

from rich.console import Group, RenderableType
from rich.table import Table

from homing.proof.bench.create import CreateTable
from homing.proof.bench.desk import DeskLine, DeskTable, latest
from homing.proof.bench.email_race import EmailTable
from homing.proof.bench.fairness import FairnessTable
from homing.proof.bench.latency import LatencyTable
from homing.proof.bench.measure import Budget, Series, percentile
from homing.proof.bench.memory import MemoryTable
from homing.proof.bench.mongo_race import MongoTable
from homing.proof.bench.notifications import OUTBOX_ON_SQLITE, NotificationTable
from homing.proof.bench.race import HOMING, LIMIT, ON_SQLITE, Line, RaceTable
from homing.proof.bench.router_race import SQS_ALONE, RouterTable
from homing.proof.bench.scale import Cost, ScaleTable
from homing.proof.bench.search import SearchTable
from homing.proof.bench.storage import StorageTable
from homing.proof.bench.webhook_race import CELERY


def mail_table(result: RaceTable) -> RenderableType:
    return _race_table(result, "mails/s")


def webhook_table(result: RaceTable) -> RenderableType:
    return _race_table(result, "POSTs/s")


def email_table(result: EmailTable) -> RenderableType:
    created = _table("creating and publishing", "emails/s", "spread", "Homing÷", "CPU µs")
    for line in result.creates:
        over = "" if line.name == HOMING else _short(line.homing_over.median)
        created.add_row(
            line.name, _rate(line.rate), _spread(line.rate), over, f"{line.cpu_micros.median:,.0f}"
        )
    race = RaceTable(result.lines, (), result.left_out)
    return Group(_race_table(race, "emails/s"), created, budget_lines(result.budgets))


def notification_table(result: NotificationTable) -> RenderableType:
    fanouts = _table("one event", "subscribers", "seconds", "others waited ms", "loop stalled ms")
    for cost in result.fanouts:
        fanouts.add_row(
            cost.database, f"{cost.subscribers:,}", f"{cost.seconds.median:.2f}",
            f"{cost.waited_ms.median:,.0f}", f"{cost.stalled_ms.median:,.0f}",
        )  # fmt: skip
    race = RaceTable(result.lines, (), ())
    same = f"{result.of_same_mails.median:.2f} of what mail_outbox does with the same mails."
    return Group(_race_table(race, "sent/s"), same, fanouts, budget_lines(result.budgets))


def router_table(result: RouterTable) -> RenderableType:
    share = f"The router did {result.of_emulator:.0%} of what the SQS emulator can do at all"
    verdict = "so the emulator is the limit" if result.emulator_is_the_limit else "so that is not the limit"
    race = RaceTable(result.lines, (), ())
    return Group(_race_table(race, "jobs/s"), f"{share}, {verdict}.")


def mongo_table(result: MongoTable) -> RenderableType:
    compared = result.compared
    table = _table("jobs/s", "put in", "claimed", "settled", "claimed and settled")
    for name, rate in (("PostgreSQL", compared.postgres), ("MongoDB", compared.mongodb)):
        figures = (rate.creates, rate.claims, rate.settles, rate.both)
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    return Group(table, f"MongoDB claims and settles {compared.ratio:.2f} times as many as PostgreSQL.")


def _race_table(result: RaceTable, rate: str) -> RenderableType:
    table = _table("path", rate, "spread", "of limit", "Homing÷", "CPU µs", "commits")
    for line in result.lines:
        over = "" if line.name == HOMING else _short(line.homing_over.median)
        table.add_row(
            line.name, _rate(line.rate), _spread(line.rate), f"{line.of_limit.median:.3f}", over,
            f"{line.cpu_micros.median:,.0f}", _commits(line),
        )  # fmt: skip
    missing = [f"not installed, so left out: {name}" for name in result.left_out]
    return Group(table, *missing, budget_lines(result.budgets))


def _commits(line: Line) -> str:
    """Only PostgreSQL counts them."""
    return (
        ""
        if line.name in {LIMIT, ON_SQLITE, OUTBOX_ON_SQLITE, CELERY, SQS_ALONE}
        else f"{line.transactions_each.median:.3f}"
    )


def scale_table(result: ScaleTable) -> RenderableType:
    table = _table("rows due", "held back", "claim buffers", "claim ms", "settle buffers", "settle ms")
    for cost in result.costs:
        table.add_row(
            f"{cost.queued:,}", f"{cost.held_back:,}{held_by(cost)}",
            f"{cost.claim_buffers:,.0f}", f"{cost.claim_ms:.2f}",
            f"{cost.settle_buffers:,.0f}", f"{cost.settle_ms:.2f}",
        )  # fmt: skip
    return Group(table, budget_lines(result.budgets))


def held_by(cost: Cost) -> str:
    holder = getattr(cost, "holder", "")
    return f" by {holder}" if holder else ""


def fairness_table(result: FairnessTable) -> RenderableType:
    table = _table("jobs are due", "p95 s alone", "p95 s beside slow ones", "ratio", "spread")
    for line in result.lines:
        table.add_row(
            line.arrival, f"{line.alone.median:.2f}", f"{line.beside.median:.2f}",
            f"{line.ratio.median:.2f}", _spread(line.ratio),
        )  # fmt: skip
    return Group(table, budget_lines(result.budgets))


def search_table(result: SearchTable) -> RenderableType:
    table = _table("search", "best ms", "p95 ms", "rows read", "total", "by")
    for cost in result.costs:
        total = f"{'≈' if cost.is_estimate else ''}{cost.total:,}"
        table.add_row(
            cost.name, f"{cost.best_ms:.1f}", f"{cost.p95_ms:.1f}", f"{cost.rows_read:,}", total, cost.plan
        )
    return Group(table, budget_lines(result.budgets))


def latency_table(result: LatencyTable) -> RenderableType:
    table = _table("wake-up", "p50 ms", "p90 ms", "p99 ms", "longest ms")
    for wake in result.wakes:
        table.add_row(wake.name, *(f"{value:.1f}" for value in (wake.p50, wake.p90, wake.p99, wake.longest)))
    return Group(table, budget_lines(result.budgets))


def memory_table(result: MemoryTable) -> RenderableType:
    weight = result.weight
    table = _table("backlog", "delivered", "empty MB", "working MB")
    table.add_row(
        f"{weight.backlog:,}", f"{weight.delivered:,}", f"{weight.empty:.1f}", f"{weight.working:.1f}"
    )
    return Group(table, budget_lines(result.budgets))


def storage_table(result: StorageTable) -> RenderableType:
    table = _table("lane", "WAL to create", "WAL to deliver", "table", "indexes")
    for line in result.lines:
        sizes = (line.wal_to_create, line.wal_to_deliver, line.table, line.indexes)
        table.add_row(line.lane, *(f"{size:,.0f} B" for size in sizes))
    return table


def desk_table(result: DeskTable) -> RenderableType:
    tables = [table for line in result.lines for table in (_page_table(line), _bulk_words(line))]
    return Group(f"On {result.machine}.", *tables, budget_lines(result.budgets))


def _page_table(line: DeskLine) -> Table:
    title = f"{line.database}, {line.messages:,} messages, {line.waiting} % waiting"
    table = Table(title=title)
    # A long query line goes on below; the figures are what somebody wants to see.
    table.add_column("page", overflow="fold")
    for name in ("p50 ms", "p95 ms", "longest ms", "first ms"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for page in sorted(line.pages, key=lambda page: -page.p95_ms):
        figures = (page.p50_ms, page.p95_ms, page.longest_ms, page.first_ms)
        table.add_row(_shortened(unquote_plus(page.path)), *(f"{figure:,.1f}" for figure in figures))
    return table


def _bulk_words(line: DeskLine) -> str:
    first, half = latest(line), percentile([page.p95_ms for page in line.pages], 0.5)
    return (
        f"Filled in {line.filled_in:.0f} s. Half of the pages have a p95 of {half:.0f} ms at most."
        f" A look of the alerts took {line.alerts_p95_ms:.0f} ms (p95)."
        f" {line.bulk.requeued:,} dead jobs were requeued in"
        f" {line.bulk.seconds:.1f} s. The slowest first answer of a process took {first.first_ms:,.0f} ms:"
        f" {_shortened(unquote_plus(first.path))}"
    )


def _shortened(path: str, most: int = 90) -> str:
    return path if len(path) <= most else f"{path[:most]}…"


def create_table(result: CreateTable) -> RenderableType:
    table = _table("endpoint", "requests/s", "spread", "ratio")
    for line in result.lines:
        bare, homing = line.without_database, line.with_database
        table.add_row(f"{line.lane} without database", _rate(bare), _spread(bare), "1")
        table.add_row(line.lane, _rate(homing), _spread(homing), f"{line.ratio.median:.2f}")
    return Group(table, budget_lines(result.budgets))


def budget_lines(budgets: Iterable[Budget]) -> RenderableType:
    table = Table(show_header=False, box=None, padding=(0, 1))
    for budget in budgets:
        sign = "[green]✔[/]" if budget.met else "[red]✖[/]"
        table.add_row(sign, budget.what, f"{_short(budget.measured)}{budget.unit}", _promise(budget))
    return table


def _promise(budget: Budget) -> str:
    sign = "≥" if budget.at == "least" else "≤"
    goal = (
        ""
        if budget.goal is None
        else f", goal {budget.goal:g}{' reached' if budget.reaches(budget.goal) else ''}"
    )
    return f"(budget {sign} {budget.bound:g}{budget.unit}{goal})"


def _table(first: str, *others: str) -> Table:
    table = Table()
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rate(series: Series) -> str:
    return f"{series.median:,.0f}"


def _spread(series: Series) -> str:
    return f"±{series.spread / 2:.0%}"


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
