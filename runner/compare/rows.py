"""One row a record: plain values, whatever state the record is in."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import errors
from runner.errors import RequestError, RunnerError
from runner.fidelity import fidelities
from runner.record import RECORD, read_record

UNREADABLE = "unreadable"
EXIT_CODES = {"completed": 0, "refused": 3, "out_of_memory": 4, "failed": 5, "killed": 5, "interrupted": 130}
"""of a run with that status, where its error's type does not say otherwise"""
UNFINISHED = {
    "planned": "it has only been planned yet, or runner itself was killed before the run began",
    "running": "it is running still, or runner itself was killed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run in the table. Sizes are bytes, times seconds; None is unknown."""

    job: str
    """the run's folder below the one that was asked for"""
    status: str
    run_id: str | None = None
    model: str | None = None
    workload: str | None = None
    precision: str | None = None
    checkpointing: str | None = None
    """off, all, or how many layers of how many"""
    device: str | None = None
    """the hardware's own name"""
    predicted: int | None = None
    """peak of the work, as it compares with `measured`"""
    measured: int | None = None
    """peak of the work; of a run that did not complete, as far as it came"""
    basis: str | None = None
    """what was measured: peak_allocated (live tensors) or peak_resident (the whole process)"""
    error: float | None = None
    """of `predicted`, relative and signed; only of runs that completed"""
    load_error: float | None = None
    """the same of the load's peak"""
    budget: int | None = None
    seconds: float | None = None
    """of the work"""
    total_seconds: float | None = None
    """of the whole run, from its start to its record"""
    tokens_per_second: float | None = None
    loss: float | None = None
    """of the last step, or the prompt's negative log likelihood"""
    reference: str | None = None
    """job that the last four below compare with; its own name in the reference itself"""
    compared: str | None = None
    """what is compared with the reference's: logits, embedding or losses"""
    kl: float | None = None
    """of the next-token distributions from the highest precision's on the same inputs, in nats"""
    top1_agreement: float | None = None
    cosine: float | None = None
    """of the embedding with the highest precision's"""
    loss_difference: float | None = None
    """largest of the steps, from the highest precision's"""
    message: str | None = None
    """why it did not complete"""
    exit_code: int = 0
    record: str = ""
    """path of record.json"""


def collect(folders: Sequence[Path]) -> list[Row]:
    """Return a row for each record below `folders`, in the order of their names, each record once.

    A record that cannot be read is a row too. With several folders, jobs have their folder's name before their own.
    Raises RequestError for a folder that is missing or holds no record.
    """
    return collect_with_records(folders)[0]


def collect_with_records(folders: Sequence[Path]) -> tuple[list[Row], dict[str, Mapping[str, Any]]]:
    """Return the rows of `collect`, and each readable row's whole record by `Row.record`."""
    rows: list[Row] = []
    records: dict[str, Mapping[str, Any]] = {}
    seen: set[Path] = set()
    for folder in folders:
        for path in _records_below(folder):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                job = _job(path, folder, several=len(folders) > 1)
                row, values = _read(path, job)
                rows.append(row)
                if values is not None:
                    records[row.record] = values
    return _with_fidelity(rows, records), records


def _records_below(folder: Path) -> list[Path]:
    if not folder.exists():
        raise RequestError(f"{folder} does not exist; give a folder with runs, such as outputs")
    found = [folder] if folder.is_file() else sorted(folder.rglob(RECORD), key=_natural)
    if not found:
        raise RequestError(f"there is no {RECORD} below {folder}; give a folder with runs, such as outputs")
    return found


def _natural(path: Path) -> list[Any]:
    """Order job 10 after job 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in path.parts]


def _job(path: Path, folder: Path, *, several: bool) -> str:
    inside = "." if path == folder else str(path.parent.relative_to(folder))
    name = path.parent.resolve().name if path == folder else folder.resolve().name
    if inside == ".":
        return name
    return f"{name}/{inside}" if several else inside


def _read(path: Path, job: str) -> tuple[Row, Mapping[str, Any] | None]:
    """Return a record's row and the record, None where it cannot be read."""
    try:
        values = read_record(path)
        return _from_record(values, job=job, path=path), values
    except (RunnerError, LookupError, TypeError, AttributeError, ValueError) as error:
        said = error.message if isinstance(error, RunnerError) else f"{path} is not as a record is: {error!r}"
        return Row(job=job, status=UNREADABLE, message=said, exit_code=5, record=str(path)), None


def _from_record(values: Mapping[str, Any], *, job: str, path: Path) -> Row:
    plan, outcome = values["plan"] or {}, values["outcome"] or {}
    checkpoint, hardware = values["checkpoint"] or {}, values["hardware"] or {}
    status, error, errors_found = str(values["status"]), values["error"] or {}, values["prediction_error"]
    predicted, measured = _peaks(values, errors_found["basis"])
    completed = status == "completed"
    losses = outcome.get("losses") or []
    likelihood = (outcome.get("details") or {}).get("negative_log_likelihood")
    return Row(
        job=job,
        status=status,
        run_id=_text(values["run_id"]),
        model=_text(checkpoint.get("id") or (Path(checkpoint["path"]).name if checkpoint.get("path") else None)),
        workload=_text((plan.get("settings") or {}).get("workload")),
        precision=_text(plan.get("precision")),
        checkpointing=_checkpointing(plan),
        device=_text(hardware.get("name")),
        predicted=predicted,
        measured=measured,
        basis=_text(errors_found["basis"]),
        error=_number(errors_found["work"]) if completed else None,
        load_error=_number(errors_found["load"]) if completed else None,
        budget=_bytes(plan.get("budget")),
        seconds=_number(values["timing"].get("work")),
        total_seconds=_number(values["timing"].get("total")),
        tokens_per_second=_number(outcome.get("tokens_per_second")),
        loss=_number(losses[-1] if losses else likelihood),
        message=_text(error.get("message")) or UNFINISHED.get(status),
        exit_code=_exit_code(status, error),
        record=str(path),
    )


def _peaks(values: Mapping[str, Any], basis: str | None) -> tuple[int | None, int | None]:
    """Return the predicted and the measured peak of the work; without a measurement the plan's whole peak.

    A run that came no further than its load has that measured. On an accelerator the process's memory on the host
    is not what was predicted, so it never stands in.
    """
    footprint = (values["plan"] or {}).get("footprint") or {}
    if basis is None:
        return _bytes(footprint.get("peak")), None
    memory = values["memory"] or {}
    measured = _bytes((memory.get("work") or memory.get("load") or {}).get(basis))
    tensors, besides = _bytes(footprint.get("work_peak")), _bytes(footprint.get("overhead"))
    if tensors is None or basis == "peak_allocated":
        return tensors, measured
    return (None if besides is None else tensors + besides), measured


def _checkpointing(plan: Mapping[str, Any]) -> str | None:
    found = plan.get("activation_checkpointing")
    if found is None:
        return None
    if not found["value"]:
        return "off"
    return "all" if found["num_layers"] == found["of"] else f"{found['num_layers']}/{found['of']}"


def _exit_code(status: str, error: Mapping[str, Any]) -> int:
    """Return the exit code of the run: of its error's class, else of its status."""
    found = getattr(errors, str(error.get("type")), None)
    if isinstance(found, type) and issubclass(found, RunnerError):
        return found.exit_code
    return EXIT_CODES.get(status, 5)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _bytes(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    """Return a number as float; the record has not-a-number and infinities as words."""
    return None if value is None or isinstance(value, bool) else float(value)


def _with_fidelity(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Add how far each run's outputs are from those of the highest precision among the rows."""
    jobs = {row.record: row.job for row in rows}
    found = fidelities([(path, Path(path), values) for path, values in records.items()])
    return [
        dataclasses.replace(
            row,
            reference=jobs[fidelity.reference],
            compared=fidelity.outputs,
            kl=fidelity.kl,
            top1_agreement=fidelity.top1_agreement,
            cosine=fidelity.cosine,
            loss_difference=fidelity.loss_difference,
        )
        if (fidelity := found.get(row.record)) is not None
        else row
        for row in rows
    ]
