"""The programs in the documentation run as they stand there."""

import asyncio
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest

import broadsheet
from tests.journal.node_process import NodeProcess
from tests.project.rules import ROOT

PAGES = ("docs/concepts/publishers-and-readers.md", "docs/getting-started.md")
JOURNALS = ("shop/orders", "shop/invoices", "shop/ledger")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = NodeProcess(tmp_path_factory.mktemp("pages"))
    assert asyncio.run(node.start())
    with broadsheet.connect_sync(node.address) as client:
        for name in JOURNALS:
            client.journals.create(name, labels={"broadsheet.dev/framing": "json-lines"})
    yield node.address
    node.kill()


@pytest.mark.parametrize("page", PAGES)
def test_each_program_of_a_page_runs(page: str, address: str) -> None:
    """A reader's first minutes are spent on copying them. They run in the order of the page, on one node."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(programs) >= 2
    for program in programs:
        with redirect_stdout(io.StringIO()):
            exec(compile(program.replace("127.0.0.1:6640", address), page, "exec"), {})


def test_what_the_programs_leave_is_what_the_page_says(address: str) -> None:
    """The page's consumer makes one invoice of each order, and its transaction one more."""
    with broadsheet.connect_sync(address) as client:
        orders = [each.json() for each in client.messages("shop/orders")]
        invoices = [each.json() for each in client.messages("shop/invoices")]
        ledger = [each.json() for each in client.messages("shop/ledger")]

    assert orders == [{"order": 1, "cents": 1250}]
    assert invoices == [{"order": 1, "cents": 1250}, {"invoice": 1}]
    assert ledger == [{"debit": 1250}]
