"""Budget: request bytes that all connections of a server work on together.

Taking never fails: bytes that are here are here. A connection that makes the sum exceed the limit stops
reading, and goes on once the sum has fallen to half of it.
"""

from collections.abc import Callable


class Budget:
    """A sum with a limit, and those that wait for it to fall."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.used_bytes = bytes_max, 0
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, size: int) -> bool:
        """Count `size` bytes; false where the limit is exceeded now."""
        self.used_bytes += size
        return self.used_bytes <= self.bytes_max

    def give(self, size: int) -> None:
        """Count them no longer, and wake who waits."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "given back twice"
        if self._waiting and self.used_bytes * 2 <= self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once the sum has fallen."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call it."""
        self._waiting.pop(resume, None)
