"""Failpoints: the labels that a part of the code passes, and at which tests kill it."""

import re
from pathlib import Path

import broadsheet


def labels_of(part: str, *, least: int) -> list[str]:
    """The labels of the folder `part`; there are `least` and more, and each stands in one place."""
    folder = Path(broadsheet.__file__).parent / part
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    labels = [label for text in texts for label in re.findall(r'passed\("([a-z_.]+)"\)', text)]
    assert len(labels) >= least
    assert len(labels) == len(dict.fromkeys(labels))
    return labels
