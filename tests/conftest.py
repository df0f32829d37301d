"""Settings of the whole suite."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Two threads of torch that wait for each other cost more than a tiny model does; here, and in processes begun by tests.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples everywhere and always, and no clock: a slow machine fails nothing. HYPOTHESIS' own command line
# (--hypothesis-profile=search) looks for new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's, of an earlier run or of a process beside: what a pass was found to cost, for one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FOREDRAFT_CACHE", "XDG_CACHE_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield
