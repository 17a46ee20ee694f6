from hypothesis import Phase, settings
from msgspec.structs import replace
from tests.model.test_outbox_machine import WALKS, opened_store, walk
def test_old_sweep(sqlite_url):
    with opened_store(sqlite_url) as opened:
        q = dict(opened.bench.outbox._queries)
        old = q["sweep"].sql
        cut = "          AND (expires_at IS NULL OR expires_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))\n"
        assert cut in old
        q["sweep"] = replace(q["sweep"], sql=old.replace(cut, ""))
        opened.bench.outbox._queries = q
        walk(opened, settings(WALKS, max_examples=150, database=None))
