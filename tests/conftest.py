"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# The same examples everywhere and always, and no clock: a slow machine fails nothing. HYPOTHESIS' own command line
# (--hypothesis-profile=search) looks for new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")
