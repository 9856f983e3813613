import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.compare import Row, collect, collect_with_records, table, write_csv, write_json
from runner.compare.__main__ import main
from runner.errors import CheckpointError, DoesNotFit, Interrupted, RequestError, RunnerError, WorkloadError
from runner.meter import MemoryStats
from runner.record import Record, to_json, write_record
from runner.units import GiB
from tests.compare_makers import ATTACK, generating, run, saved, saved_sweep, training
from tests.makers import card, checkpoint


def sweep_of(folder: Path, *records: Record) -> list[Row]:
    """The rows of records saved as jobs 0, 1, …"""
    for number, made in enumerate(records):
        saved(folder, str(number), made)
    return collect([folder])


def test_a_row_has_what_the_record_says(tmp_path: Path) -> None:
    made = run(
        training("bf16", checkpointing=True), outcome={"losses": (3.0, 2.0), "tokens_per_second": 7, "details": {}}
    )
    (row,) = sweep_of(tmp_path, made)
    assert (row.job, row.status, row.run_id) == ("0", "completed", made.run_id)
    assert (row.model, row.workload, row.precision) == ("acme/small-300m", "train", "bf16")
    assert (row.checkpointing, row.device, row.basis) == ("all", "a CPU", "peak_resident")
    assert made.plan is not None
    assert row.predicted == made.plan.footprint.work_peak + made.plan.footprint.overhead
    assert row.measured == made.memory["work"].peak_resident
    assert row.error == pytest.approx((row.predicted - row.measured) / row.measured, abs=1e-6)
    assert row.load_error == pytest.approx(1 / 0.98 - 1, abs=1e-6)
    assert (row.seconds, row.total_seconds, row.tokens_per_second, row.loss) == (15.6, 24.6, 7.0, 2.0)
    assert row.message is None


def test_where_live_tensors_are_counted_overhead_is_not_in_the_prediction(tmp_path: Path) -> None:
    made = run(training("fp32"), machine=card())
    (row,) = sweep_of(tmp_path, made)
    assert made.plan is not None
    assert (row.basis, row.predicted) == ("peak_allocated", made.plan.footprint.work_peak)


def test_some_layers_checkpointed_are_told_by_their_number(tmp_path: Path) -> None:
    made = run(training("fp32"))
    assert made.plan is not None
    some = replace(made, plan=replace(made.plan, settings=replace(made.plan.settings, checkpointed_layers=5)))
    assert sweep_of(tmp_path, some)[0].checkpointing == "5/12"


def test_jobs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for job in ("10", "2", "1"):
        saved(tmp_path, job, run())
    assert [row.job for row in collect([tmp_path])] == ["1", "2", "10"]


def test_several_folders_are_told_apart_and_a_record_counts_once(tmp_path: Path) -> None:
    for sweep in ("one", "two"):
        saved(tmp_path / sweep, "0", run())
    assert [row.job for row in collect([tmp_path / "one", tmp_path / "two"])] == ["one/0", "two/0"]
    assert [row.job for row in collect([tmp_path, tmp_path / "two"])] == [
        f"{tmp_path.name}/one/0",
        f"{tmp_path.name}/two/0",
    ]
    assert [row.job for row in collect([tmp_path / "one" / "0"])] == ["0"]
    assert [row.job for row in collect([tmp_path / "one" / "0" / "record.json"])] == ["0"]


def test_the_peak_of_the_host_never_stands_in_for_a_cards(tmp_path: Path) -> None:
    (row,) = sweep_of(tmp_path, run(machine=card(), memory={"work": MemoryStats(peak_resident=GiB)}))
    assert (row.measured, row.error) == (None, None)
    assert row.predicted is not None


def test_a_run_that_ended_early_has_what_was_measured_but_no_error_of_prediction(tmp_path: Path) -> None:
    made = run(memory={"load": MemoryStats(peak_resident=GiB)}).with_error(WorkloadError("no"))
    (row,) = sweep_of(tmp_path, made)
    assert (row.measured, row.error, row.load_error) == (GiB, None, None)
    assert made.plan is not None
    assert row.predicted == made.plan.footprint.peak


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("a"), 2), (CheckpointError("a"), 2), (DoesNotFit("a"), 3), (WorkloadError("a"), 5), (Interrupted("a"), 130),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_error(tmp_path: Path, error: RunnerError, code: int) -> None:
    (row,) = sweep_of(tmp_path, run().with_error(error))
    assert (row.exit_code, row.status) == (code, error.status)


def test_an_unfinished_run_is_told_as_such(tmp_path: Path) -> None:
    rows = sweep_of(tmp_path, run(status="running"), run(status="planned"))
    assert all(row.exit_code == 5 and row.message for row in rows)


def test_what_is_unknown_is_a_dash_and_not_a_zero(tmp_path: Path) -> None:
    rows = sweep_of(tmp_path, run(memory={}, timing={}, outcome=None, hardware=card()), run())
    first, second = table(rows).splitlines()[1:3]
    assert "–" in first
    assert " 0" not in first
    assert "1.93 GiB" in second
    assert "tokens/s" not in table(rows[:1])


def test_a_broken_record_is_a_row(tmp_path: Path) -> None:
    for job, text in (("0", "{"), ("1", "[]"), ("2", '{"schema_version": 99}'), ("3", "\x00")):
        (tmp_path / job).mkdir()
        (tmp_path / job / "record.json").write_text(text)
    rows, records = collect_with_records([tmp_path])
    assert [(row.status, row.exit_code) for row in rows] == [("unreadable", 5)] * 4
    assert all(row.message for row in rows)
    assert records == {}


@pytest.mark.parametrize("broken", ["text", 7, [1], {"a": [None]}, None, True])
@pytest.mark.parametrize("name", list(to_json(run())))
def test_a_record_with_a_value_of_the_wrong_kind_is_a_row_all_the_same(tmp_path: Path, name: str, broken: Any) -> None:
    path = saved(tmp_path, "0", run())
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: broken}))
    saved(tmp_path, "1", run(generating("bf16")))
    rows = collect([tmp_path])
    assert len(rows) == 2
    assert table(rows)


def test_a_record_that_came_no_further_than_its_start_is_a_row(tmp_path: Path) -> None:
    blank = Record(run_id="x", status="planned", command=(), overrides=(), config={}, environment={})
    (row,) = sweep_of(tmp_path, blank)
    assert (row.status, row.precision, row.predicted) == ("planned", None, None)
    assert table([row])


def test_what_went_wrong_stands_below_the_table_on_one_line(tmp_path: Path) -> None:
    rows = sweep_of(tmp_path, run(), run().with_error(DoesNotFit("needs 9 GiB\nis short")))
    assert table(rows).splitlines()[-1] == "job 1 refused: needs 9 GiB is short"


def test_nothing_in_a_record_acts_on_the_terminal(tmp_path: Path) -> None:
    rows = sweep_of(tmp_path, run(checkpoint=checkpoint(id=f"[red]{ATTACK}")).with_error(WorkloadError(ATTACK)), run())
    text = table(rows, width=400)
    assert "\x1b" not in text
    assert "[red]<img" in text


def test_columns_that_are_the_same_everywhere_are_left_out(tmp_path: Path) -> None:
    assert "model" not in table(sweep_of(tmp_path, run()), width=400).splitlines()[0]
    saved(tmp_path, "1", run(checkpoint=checkpoint(id="another/model")))
    assert "model" in table(collect([tmp_path]), width=400).splitlines()[0]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_table_keeps_to_the_width_and_says_what_it_left_out(tmp_path: Path, width: int) -> None:
    saved_sweep(tmp_path)
    rows = collect([tmp_path])
    lines = table(rows, width=width).splitlines()
    assert max(len(line) for line in lines[: len(rows) + 1]) <= width
    assert {"job", "prec", "predicted", "measured", "status"} <= set(lines[0].split())
    assert lines[len(rows) + 1].startswith("no room for load error")


def test_a_wide_table_has_every_column(tmp_path: Path) -> None:
    saved_sweep(tmp_path)
    head = table(collect([tmp_path]), width=400).splitlines()[0]
    for title in ("load error", "top-1", "Δ loss", "device", "precision"):
        assert title in head
    assert "no room" not in table(collect([tmp_path]), width=400)


def test_distances_of_several_kinds_share_a_column_where_room_is_short(tmp_path: Path) -> None:
    saved_sweep(tmp_path)
    lines = table(collect([tmp_path])).splitlines()
    assert "fidelity" in lines[0]
    assert "ref." in lines[1]
    assert "KL " in lines[2]
    assert "Δ loss" in lines[6]


def test_the_files_read_back_as_the_rows(tmp_path: Path) -> None:
    rows = sweep_of(tmp_path, run(), run(checkpoint=None, outcome={"losses": (float("inf"),), "details": {}}))
    write_csv(rows, tmp_path / "a.csv")
    write_json(rows, tmp_path / "a.json")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["predicted"] for line in lines] == [str(row.predicted) for row in rows]
    assert lines[1]["model"] == ""
    values = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert values["schema_version"] == 1
    assert [row["job"] for row in values["rows"]] == ["0", "1"]
    assert values["rows"][0]["measured"] == rows[0].measured
    assert values["rows"][1]["loss"] == "inf"


def test_a_folder_without_runs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        collect([tmp_path / "no"])
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("runner: there is no record.json below")


def test_the_command_prints_the_table_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "runs", "0", run())
    names = ("csv", "json", "html")
    wanted = [word for name in names for word in (f"--{name}", str(tmp_path / f"a.{name}"))]
    assert main([str(tmp_path / "runs"), *wanted]) == 0
    assert capsys.readouterr().out.startswith("job ")
    assert all((tmp_path / f"a.{name}").exists() for name in names)


def test_a_file_that_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(run(), tmp_path / "runs")
    (tmp_path / "taken").mkdir()
    for target in ("no/a.csv", "taken"):
        assert main([str(tmp_path / "runs"), "--csv", str(tmp_path / target)]) == 2
        said = capsys.readouterr().err
        assert "cannot be written" in said
        assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "taken"]
