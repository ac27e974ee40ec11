"""Pages of the documentation that are made from the code: `make docs` writes them, a test compares them."""

from broadsheet.errors import BY_STATUS, Refused, Status
from tests.project.rules import ROOT

ERRORS_PAGE = ROOT / "docs" / "reference" / "errors.md"

ERRORS_INTRODUCTION = """# Errors

Made from `src/broadsheet/errors.py` by `make docs`; do not edit.

Each status of the native wire is one class, and each class one status; the numbers are never reused.
*Refused* means that nothing was done, for certain, and says whether to retry. *Unknown* means that it may
have been done: look, or repeat it only where that is harmless. An error's message carries the values.

| status | number | class | kind | retry | meaning, state afterwards, remedy |
|---|---|---|---|---|---|
"""


def errors_page() -> str:
    """The table of errors."""
    rows = []
    for status in Status:
        if status is Status.OK:
            continue
        kind = BY_STATUS[status]
        retry = kind.retry.value if issubclass(kind, Refused) else "-"
        parent = kind.__mro__[1].__name__
        meaning = " ".join((kind.__doc__ or "").split())
        rows.append(
            f"| `{status.name}` | {status.value} | `{kind.__name__}` | {parent} | {retry} | {meaning} |\n"
        )
    return ERRORS_INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    ERRORS_PAGE.write_text(errors_page())
