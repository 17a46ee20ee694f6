"""The bench of fairness, in small: real targets that drip, and healthy ones that must not notice."""

from __future__ import annotations

import pytest

from homing.proof.bench import fairness as bench
from homing.proof.bench.fairness import FairnessLine, FairnessPlan, FairnessTable, Waits, fairness
from homing.proof.bench.measure import Series
from homing.testing.components.postgres import Postgres


@pytest.mark.slow
async def test_targets_that_drip_keep_no_healthy_job_waiting(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many slow jobs as slots: a healthy one that waited for a slow one would wait for 20 s."""
    waits: dict[int, Waits] = {}
    one_run = bench._one_run

    async def noted(plan: FairnessPlan, url: str, kinds: tuple[str, ...], spread: float) -> Waits:
        waits[len(kinds)] = found = await one_run(plan, url, kinds, spread)
        return found

    monkeypatch.setattr(bench, "_one_run", noted)
    monkeypatch.setattr(bench, "ARRIVALS", {"all at once": 0.0})
    # So that no pause of the machine looks like it.
    monkeypatch.setattr(bench, "_DEADLINE", 20.0)
    steps: list[str] = []
    plan = FairnessPlan(targets=20, jobs_per_target=20, slots=100)
    table = await fairness(plan, 1, steps.append, postgres_url=postgres_server.url())
    assert waits[2].longest < 15.0, waits
    assert (table.jobs, table.targets, len(steps)) == (400, 20, 2)
    (line,) = table.lines
    assert line.ratio.values == (waits[2].p95 / waits[1].p95,)
    assert table.budgets[0].measured == line.ratio.median


def test_pairs_go_in_turns_and_now_one_first_and_now_the_other() -> None:
    order = [(arrival, len(kinds)) for _, arrival, kinds in bench._schedule(2)]
    first, second = bench.ARRIVALS
    assert order == [
        (first, 1), (first, 2), (second, 1), (second, 2),
        (first, 2), (first, 1), (second, 2), (second, 1),
    ]  # fmt: skip


def test_the_budget_is_the_median_of_the_ratios_of_pairs() -> None:
    alone = [Waits(0.5, 1.0, 2.0), Waits(0.5, 2.0, 2.0), Waits(0.5, 4.0, 4.0)]
    beside = [Waits(0.5, 1.1, 2.0, 7), Waits(0.5, 2.4, 2.0, 8), Waits(0.5, 8.0, 8.0, 9)]
    line = bench._line("all at once", alone, beside)
    assert line.timed_out.values == (7.0, 8.0, 9.0)
    budget = bench._budget(line)
    assert budget.measured == pytest.approx(1.2)
    assert budget.met
    assert not bench._budget(FairnessLine("x", line.alone, line.beside, Series((1.26,)), line.timed_out)).met


def test_every_target_has_an_address_of_its_own() -> None:
    kinds = (bench.HEALTHY, bench.SLOW)
    addresses = {bench._address(kind, number) for kind in kinds for number in range(600)}
    assert len(addresses) == 1200
    assert all(address.startswith("127.") for address in addresses)


def test_the_result_can_be_printed_as_json() -> None:
    import msgspec

    series = Series((1.0,))
    line = FairnessLine("all at once", series, series, series, series)
    table = FairnessTable(10, 2, (line,), (bench._budget(line),))
    assert msgspec.json.decode(msgspec.json.encode(table), type=FairnessTable) == table
