"""Size: a warning when the document passes half of its limit; again only after it was smaller.

Sizes are in bytes. Every provider warns, because every change of the document passes one. It refuses nothing.
Source: control.1.
"""

from broadsheet.control.core.value import DOCUMENT_BYTES_MAX, DOCUMENT_BYTES_WARN
from broadsheet.observe.logs import Logger


class SizeWarning:
    """The warning of one metastore that its document is large."""

    def __init__(self, logger: Logger | None) -> None:
        """Warn on `logger`; None, as in a simulation, for no warning."""
        self._logger = logger
        self._is_above = False

    def saw(self, document_bytes: int) -> None:
        """Note the size of the latest document."""
        is_above = document_bytes >= DOCUMENT_BYTES_WARN
        if is_above and not self._is_above and self._logger is not None:
            self._logger.warning(
                "metastore.document_large", document_bytes=document_bytes, limit_bytes=DOCUMENT_BYTES_MAX
            )
        self._is_above = is_above
