import csv
import json
from pathlib import Path
from typing import Any

import pytest

from runner.compare import collect, main, table, write_sweep
from runner.errors import CheckpointError, DoesNotFit, RequestError
from runner.meter import MemoryStats
from runner.record import Record, write_record
from runner.units import GiB
from tests.makers import checkpoint
from tests.test_record import record


def saved(folder: Path, job: str, **overrides: Any) -> Path:
    """Write a record as a job's."""
    (folder / job).mkdir(parents=True)
    return write_record(record(**overrides), folder / job)


def test_a_row_has_what_the_record_says(tmp_path: Path) -> None:
    saved(
        tmp_path, "0", memory={"work": MemoryStats(peak_allocated=4 * GiB)}, timing={"work": 2.5},
        outcome={"losses": [3.0, 2.0], "tokens_per_second": 7.0, "details": {}},
    )  # fmt: skip
    (row,) = collect([tmp_path])
    assert (row.job, row.status, row.precision, row.checkpointing) == ("0", "completed", "fp32", "off")
    assert (row.measured, row.basis, row.seconds, row.tokens_per_second, row.loss) == (
        4 * GiB,
        "peak_allocated",
        2.5,
        7.0,
        2.0,
    )
    assert row.predicted is not None
    assert row.error == pytest.approx((row.predicted - 4 * GiB) / (4 * GiB), abs=1e-6)


def test_jobs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for job in ("10", "2", "1"):
        saved(tmp_path, job)
    assert [row.job for row in collect([tmp_path])] == ["1", "2", "10"]


def test_what_is_unknown_is_a_dash_and_not_a_zero(tmp_path: Path) -> None:
    saved(tmp_path, "0")
    saved(tmp_path, "1", memory={"work": MemoryStats(peak_allocated=GiB)})
    first, second = table(collect([tmp_path])).splitlines()[1:]
    assert "–" in first
    assert " 0 B" not in first
    assert "1.00 GiB" in second
    assert "tokens/s" not in table(collect([tmp_path]))


def test_what_went_wrong_stands_below_the_table(tmp_path: Path) -> None:
    saved(tmp_path, "0")
    write_record(record().with_error(DoesNotFit("needs 9 GiB")), _folder(tmp_path, "1"))
    write_record(record().with_error(CheckpointError("no such folder")), _folder(tmp_path, "2"))
    (_folder(tmp_path, "3") / "record.json").write_text("{")
    rows = collect([tmp_path])
    assert [row.exit_code for row in rows] == [0, 3, 2, 5]
    text = table(rows)
    assert "job 1 refused: needs 9 GiB" in text
    assert "job 3 unreadable: " in text


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_columns_that_are_the_same_everywhere_are_left_out(tmp_path: Path) -> None:
    saved(tmp_path, "0")
    assert "model" not in table(collect([tmp_path])).splitlines()[0]
    saved(tmp_path, "1", checkpoint=checkpoint(id="another/model"))
    assert "model" in table(collect([tmp_path])).splitlines()[0]


def test_a_record_that_came_no_further_than_its_start_is_a_row(tmp_path: Path) -> None:
    blank = Record(run_id="x", status="planned", command=(), overrides=(), config={}, environment={})
    write_record(blank, _folder(tmp_path, "0"))
    (row,) = collect([tmp_path])
    assert (row.status, row.precision, row.predicted) == ("planned", None, None)
    assert table([row])


def test_a_sweeps_files_read_back_as_its_rows(tmp_path: Path) -> None:
    saved(tmp_path, "0")
    saved(tmp_path, "1", checkpoint=None)
    rows = write_sweep(tmp_path)
    with (tmp_path / "sweep.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["predicted"] for line in lines] == [str(row.predicted) for row in rows]
    assert lines[1]["model"] == ""
    assert [row["job"] for row in json.loads((tmp_path / "sweep.json").read_text())["rows"]] == ["0", "1"]


def test_a_folder_without_runs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        collect([tmp_path / "no"])
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("runner: there is no record.json below")


def test_the_command_prints_the_table_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "runs", "0")
    assert main([str(tmp_path / "runs"), "--csv", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]) == 0
    assert capsys.readouterr().out.startswith("job ")
    assert (tmp_path / "a.csv").exists()
    assert main([str(tmp_path / "runs"), "--csv", str(tmp_path / "no" / "a.csv")]) == 2
