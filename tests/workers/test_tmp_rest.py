from __future__ import annotations
import pytest
from tests.workers.test_pause import test_a_consumer_at_rest_leaves_messages_to_others_until_it_is_asked as one
@pytest.mark.parametrize("n", range(12))
async def test_it(rabbitmq_url: str, n: int) -> None:
    await one(rabbitmq_url)
