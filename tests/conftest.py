"""What all tests share: budgets per part, needs of the machine, Hypothesis profiles."""

import os

os.environ["BROADSHEET_CHECK"] = "1"  # Before broadsheet is imported, and for every node that a test starts.

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.plugins.names", "tests.plugins.parts", "tests.plugins.needs"]

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=100)
settings.register_profile(
    "soak", deadline=None, max_examples=10_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
