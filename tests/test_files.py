import os
import stat
from pathlib import Path

import pytest

from runner.files import remove_parts, write_whole, written_aside


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "first\r\n")
    write_whole(tmp_path / "a.txt", "zweite ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "zweite ü\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "old")

    def fail() -> None:
        with written_aside(tmp_path / "a") as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_users_mask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for name in ("job/.record.json.0a1b2c3d.part", "job/.note", "job/movie.part", "job/record.json"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == [".note", "movie.part", "record.json"]
