"""`docs/concepts/life-of-an-append.md` is a true walk: a traced append passes the modules that it names."""

import re
import sys
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Final

import broadsheet
from broadsheet.doors.http.door import HTTPConfig
from broadsheet.doors.native.door import NativeConfig
from broadsheet.node import Node, NodeConfig, Settings
from broadsheet.observe.logs import Logs
from broadsheet.runtime.disk import LocalDisk
from broadsheet.runtime.system import system_ports

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = f"{ROOT / 'src' / 'broadsheet'}/"


async def test_an_append_passes_each_module_that_its_walk_names(tmp_path: Path) -> None:
    """After a change of the wire the page named a module that no append passed any more."""
    walk = (ROOT / "docs/concepts/life-of-an-append.md").read_text().partition("\nThat is ")[0]
    named = dict.fromkeys(re.findall(r"\*\*`([a-z_/]+\.py)`\*\*", walk))
    disk, crashes, passed = LocalDisk(tmp_path), list[BaseException](), dict[str, None]()
    ports = system_ports(disk, crash=crashes.append)
    settings = Settings(
        node=NodeConfig(data_dir=str(tmp_path)),
        native=NativeConfig(address="127.0.0.1:0"),
        http=HTTPConfig(address="127.0.0.1:0"),
    )
    node = Node(settings, ports, logs=Logs(wall=ports.time.wall, stream=StringIO()))

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        passed[frame.f_code.co_filename.removeprefix(SOURCE)] = None

    before = sys.getprofile()
    try:
        addresses = await node.start()
        async with broadsheet.connect(addresses["native"]) as client:
            await client.journals.create("life/a")
            await client.journals.append("life/a", b"opens the stream\n")
            sys.setprofile(note)
            await client.journals.append("life/a", b"x" * 100)
            sys.setprofile(before)
    finally:
        sys.setprofile(before)
        await node.close()
        disk.close()

    assert len(named) >= 15
    assert [each for each in named if each not in passed] == []
    assert crashes == []
