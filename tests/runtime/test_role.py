"""Services are found by their class, in the order in which roles offered them."""

import pytest

from broadsheet.runtime.role import Services


def test_what_is_offered_is_found() -> None:
    """A later role finds what an earlier one offers; two nodes of one process share nothing."""
    services, others = Services(), Services()
    services.offer(int, 1)
    services.offer(str, "one")
    services.offer(str, "two")

    assert services.one(int) == 1
    assert services.every(str) == ["one", "two"]
    assert others.every(str) == []
    for kind in (str, float):
        with pytest.raises(ValueError, match="values to unpack"):
            services.one(kind)
