import pytest, time
@pytest.mark.parametrize("n", range(4))
def test_a(n, postgres_url): time.sleep(8)
