"""SizeWarning: says once that the document has passed half of its limit, and again after it was smaller.

Bytes. Used by every provider, since whoever changes the document meets one. It refuses nothing.
Source: design/control.md control.1 ("refused above, warned at half").
"""

from broadsheet.control.core.value import DOCUMENT_BYTES_MAX, DOCUMENT_BYTES_WARN
from broadsheet.observe.logs import Logger


class SizeWarning:
    """What a provider tells of each document that it sees."""

    def __init__(self, logger: Logger | None) -> None:
        """Write to `logger`; to nobody where it is None, as in a simulation."""
        self._logger = logger
        self._is_above = False

    def saw(self, document_bytes: int) -> None:
        """The latest document has `document_bytes`."""
        is_above = document_bytes >= DOCUMENT_BYTES_WARN
        if is_above and not self._is_above and self._logger is not None:
            self._logger.warning(
                "metastore.document_large", document_bytes=document_bytes, limit_bytes=DOCUMENT_BYTES_MAX
            )
        self._is_above = is_above
