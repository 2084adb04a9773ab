"""Socket paths: one launcher at a time, nothing of another user touched, stale files replaced (G40)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from text_generation_launcher.errors import LauncherError
from text_generation_launcher.socket_prefix import SocketPrefix


def make_socket(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


def test_prefix_in_use_gives_way_to_the_alternatives(tmp_path: Path) -> None:
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    with SocketPrefix(one, 1, (two, three)) as first, SocketPrefix(one, 1, (two, three)) as second:
        with SocketPrefix(one, 1, (two, three)) as third:
            assert [prefix.path for prefix in (first, second, third)] == [one, two, three]
            assert [prefix.is_first_choice for prefix in (first, second, third)] == [True, False, False]
        with pytest.raises(LauncherError, match="in use by another server; choose another with --shard-uds-path"):
            SocketPrefix(one, 1, (two,))
    with SocketPrefix(one, 1) as again:
        assert again.path == one
    assert list(tmp_path.iterdir()) == []


def test_live_socket_without_a_lock_is_in_use_and_left_alone(tmp_path: Path) -> None:
    with make_socket(tmp_path / "s-1"):
        with pytest.raises(LauncherError, match="in use by another server"):
            SocketPrefix(str(tmp_path / "s"), 2)
        with SocketPrefix(str(tmp_path / "s"), 2, [str(tmp_path / "other")]) as prefix:
            assert not prefix.is_first_choice
        assert [path.name for path in tmp_path.iterdir()] == ["s-1"]


def test_stale_sockets_are_removed_and_so_are_those_left_at_the_end(tmp_path: Path) -> None:
    make_socket(tmp_path / "s-0").close()
    (tmp_path / "s.lock").touch()  # of a launcher that was killed
    with SocketPrefix(str(tmp_path / "s"), 1) as prefix:
        assert prefix.path == str(tmp_path / "s")
        assert not (tmp_path / "s-0").exists()
        make_socket(tmp_path / "s-0").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("alternatives", [(), ("/tmp/never-made",)])
def test_what_is_not_a_socket_is_left_alone(tmp_path: Path, alternatives: tuple[str, ...]) -> None:
    (tmp_path / "s-0").write_text("precious")
    with pytest.raises(LauncherError, match="is not a socket; remove it or choose another with --shard-uds-path"):
        SocketPrefix(str(tmp_path / "s"), 1, alternatives)
    assert (tmp_path / "s-0").read_text() == "precious"
    assert not (tmp_path / "s.lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_socket_of_another_user_is_left_alone_and_the_flag_named(tmp_path: Path) -> None:
    make_socket(tmp_path / "s-0").close()
    os.chown(tmp_path / "s-0", 12345, 12345)
    with pytest.raises(LauncherError, match=r"belongs to another user \(id 12345\); choose another with --shard-uds"):
        SocketPrefix(str(tmp_path / "s"), 1)
    assert (tmp_path / "s-0").exists()


def test_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    prefix = str(tmp_path / "x")
    prefix += "x" * (106 - len(prefix) - len("-0"))
    with SocketPrefix(prefix, 10):
        make_socket(Path(f"{prefix}-9")).close()
    with pytest.raises(LauncherError, match="108 bytes long and the system allows 107; choose a shorter one"):
        SocketPrefix(prefix + "x", 11)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="nowhere for the shards' sockets does not exist"):
        SocketPrefix(str(tmp_path / "nowhere" / "s"), 1)
