"""Violation: what a checker says of a run. It knows nothing of who checks, so everybody may raise it."""


class Violation(Exception):  # noqa: N818 - the field's word.
    """A property does not hold in this run. The message says which, with the values."""
