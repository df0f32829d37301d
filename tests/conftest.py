"""Settings of the whole suite."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples everywhere and always, and no clock: a slow machine fails nothing. HYPOTHESIS' own command line
# (--hypothesis-profile=search) looks for new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's, and nothing that an earlier run left: what a pass was found to cost, for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other cost more than a tiny model does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
