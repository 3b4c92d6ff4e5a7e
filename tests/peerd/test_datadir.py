"""The data directory: one daemon at a time, closed to others, its traces cleaned."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.datadir import DataDir, default_data_dir
from peerd.errors import Exit, PeerError

HOLDER = (
    "import sys; from pathlib import Path; from peerd.datadir import DataDir\nwith DataDir(Path(sys.argv[1])).held():"
)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.prepare()
    return data


def test_it_is_made_for_its_owner_alone(data: DataDir):
    assert stat.S_IMODE(data.path.stat().st_mode) == 0o700


def test_an_empty_or_own_directory_is_closed_to_others_and_a_foreign_one_is_refused(tmp_path: Path):
    tmp_path.chmod(0o755)
    DataDir(tmp_path).prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    foreign = tmp_path / "documents"
    foreign.mkdir(mode=0o755)
    (foreign / "letter").touch()
    with pytest.raises(PeerError, match="open to others"):
        DataDir(foreign).prepare()
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o755


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path):
    # Below a regular file nobody can make a directory, not even root.
    (tmp_path / "file").touch()
    with pytest.raises(PeerError) as caught:
        DataDir(tmp_path / "file" / "data").prepare()
    assert caught.value.exit_code == Exit.FAILED
    assert "cannot use the data directory" in caught.value.error


def test_a_second_daemon_is_refused_with_the_process_id_of_the_first(data: DataDir):
    script = f"{HOLDER}\n    print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(data.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert data.is_held()
        with pytest.raises(PeerError, match=f"in use by process {holder.pid}"), data.held():
            pytest.fail("two daemons hold one directory")
        assert holder.stdin is not None
        holder.stdin.close()
    assert not data.is_held()
    assert not data.pid_file.exists()


def test_traces_of_a_daemon_that_was_killed_do_not_matter(data: DataDir):
    script = f"{HOLDER}\n    import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(data.path)], check=False)
    assert data.pid_file.exists()
    data.socket_path.touch()
    assert not data.is_held()
    with data.held():
        assert data.pid() == os.getpid()
        assert not data.socket_path.exists()
    assert not data.pid_file.exists()


def test_a_long_path_gets_its_socket_elsewhere_in_a_folder_of_ours_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = DataDir(tmp_path / ("d" * 120))
    data.prepare()
    data.prepare_socket_folder()
    path = data.socket_path
    assert path == DataDir(data.path).socket_path
    assert len(path.name) < len(data.path.name)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.chmod(0o755)
    with pytest.raises(PeerError, match="not a folder of ours alone"):
        data.prepare_socket_folder()


def test_a_short_path_keeps_its_socket():
    assert DataDir(Path("/d")).socket_path == Path("/d/peer.sock")


def test_contacts_and_the_mark_of_leaving_survive_and_nonsense_does_not(data: DataDir):
    assert data.read_contacts() == []
    data.write_contacts(["10.0.0.5:7400"])
    assert data.read_contacts() == ["10.0.0.5:7400"]
    data.contacts_file.write_text('{"not": "a list"')
    assert data.read_contacts() == []
    assert data.left() is None
    data.mark_left("plant", 12.5)
    assert data.left() == ("plant", 12.5)
    data.left_file.write_text("[]")
    assert data.left() is None
    data.clear_left()
    assert not data.left_file.exists()


def test_the_default_place_follows_the_environment():
    assert default_data_dir({"PEER_DATA_DIR": "/x", "XDG_DATA_HOME": "/y"}) == Path("/x")
    assert default_data_dir({"XDG_DATA_HOME": "/y"}) == Path("/y/peerd")
    assert default_data_dir({}) == Path.home() / ".local" / "share" / "peerd"
