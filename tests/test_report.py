import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from runner.axis import byte_scale, log_scale, number_scale
from runner.compare import collect_with_records
from runner.errors import RequestError
from runner.record import to_json
from runner.report import write_html, write_sweep
from runner.report.bars import bar_of
from runner.report.page import page
from runner.report.timelines import MOST_POINTS, timeline_of
from runner.units import GiB, MiB
from tests.compare_makers import ATTACK, generating, run, saved, saved_sweep, training
from tests.makers import card, checkpoint

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Page(HTMLParser):
    """What a page holds: its elements, its text, and the addresses that it names."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def written(folder: Path) -> str:
    """The page over the records below a folder."""
    rows, records = collect_with_records([folder])
    return page(rows, records, title="a title")


def test_the_page_has_a_row_for_each_run_and_every_picture(tmp_path: Path) -> None:
    saved_sweep(tmp_path)
    text = written(tmp_path)
    seen = Page(text)
    assert seen.open == []
    assert seen.tags.count("tr") == 1 + 15
    words = " ".join(seen.texts)
    for heading in (
        "What went wrong", "Runs", "Memory against speed: generate", "Memory against speed: train", "Memory against fidelity of next-token distributions",
        "Memory against fidelity of training losses", "Predicted parts beside the measured peak", "Memory over time",
        "Commands that repeat these runs",
    ):  # fmt: skip
        assert heading in words
    assert seen.attributes.count(("class", "small")) == 12


def test_every_drawing_is_xml_and_says_what_it_shows(tmp_path: Path) -> None:
    saved_sweep(tmp_path)
    pieces = [f"<svg{part.split('</svg>')[0]}</svg>" for part in written(tmp_path).split("<svg")[1:]]
    assert len(pieces) > 20
    for piece in pieces:
        root = ElementTree.fromstring(piece)
        assert root.get("aria-hidden") == "true" or root.get("aria-label")


def test_the_page_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    saved(tmp_path, "0", run())
    seen = Page(written(tmp_path))
    assert not [name for name, _ in seen.attributes if name in ("src", "href", "srcset")]
    assert seen.tags.count("script") == 1
    (policy,) = [value for name, value in seen.attributes if name == "content" and "default-src" in (value or "")]
    assert "default-src 'none'" in (policy or "")
    assert "'unsafe-inline'; script-src 'sha256-" in (policy or "")


def test_nothing_from_a_record_becomes_markup(tmp_path: Path) -> None:
    names = {name: ATTACK for name in ("run_id", "status", "reproduce")}
    made = run(
        checkpoint=checkpoint(id=ATTACK), machine=card(name=ATTACK), error={"type": "x", "message": ATTACK}, **names
    )
    made = replace(made, timeline=((0.0, ATTACK, GiB), (1.0, "work", GiB)))
    saved(tmp_path, "<mark>&", made)
    saved(tmp_path, "1", run())
    text = written(tmp_path)
    seen = Page(text)
    assert "img" not in seen.tags
    assert "mark" not in seen.tags
    assert "job <mark>&" in seen.texts
    assert "\x1b" not in text
    assert "<img" not in text


@pytest.mark.parametrize("broken", ["text", 7, [1], [[1, 2, 3]], {"a": [None]}, None, True])
@pytest.mark.parametrize("name", list(to_json(run())))
def test_a_record_with_a_value_of_the_wrong_kind_is_drawn_as_far_as_it_goes(
    tmp_path: Path, name: str, broken: Any
) -> None:
    path = saved(tmp_path, "0", run())
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: broken}))
    assert Page(written(tmp_path)).tags.count("tr") == 2


def test_runs_of_which_nothing_is_known_have_a_row_and_no_picture(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "record.json").write_text("")
    seen = Page(written(tmp_path))
    assert seen.tags.count("tr") == 2
    assert "svg" not in seen.tags


def test_a_bar_is_as_long_as_its_parts_and_the_process_is_measured_beside_it(tmp_path: Path) -> None:
    made = run(training("fp32"))
    saved(tmp_path, "0", made)
    rows, records = collect_with_records([tmp_path])
    bar = bar_of(rows[0], records[rows[0].record])
    assert bar is not None
    assert made.plan is not None
    assert bar.peak == made.plan.footprint.peak
    assert bar.parts[-1] == ("overhead", 340 * MiB)
    assert bar.measured == (("the process, resident", "process", made.memory["work"].peak_resident),)


def test_on_a_card_the_hosts_memory_is_not_set_beside_the_devices(tmp_path: Path) -> None:
    saved(tmp_path, "0", run(training("bf16"), machine=card()))
    rows, records = collect_with_records([tmp_path])
    bar, line = bar_of(rows[0], records[rows[0].record]), timeline_of(rows[0], records[rows[0].record])
    assert bar is not None
    assert [words for words, _, _ in bar.measured] == [
        "live tensors",
        "held by the allocator",
        "the process on the device",
    ]
    assert line is not None
    assert (line.predicted, line.budget, line.on_host) == (None, None, False)


def test_a_long_timeline_is_thinned_and_keeps_its_peak(tmp_path: Path) -> None:
    samples = tuple((0.01 * i, "work", GiB + (5 * GiB if i == 777 else i)) for i in range(2000))
    saved(tmp_path, "0", run(timeline=samples))
    rows, records = collect_with_records([tmp_path])
    line = timeline_of(rows[0], records[rows[0].record])
    assert line is not None
    assert len(line.samples) <= MOST_POINTS + 2
    assert max(size for _, _, size in line.samples) == 6 * GiB


def test_axes_have_round_values_in_one_unit_and_hold_all_values() -> None:
    scale = byte_scale([0.3 * GiB, 5.7 * GiB])
    assert [label for _, label in scale.ticks] == ["0", "2 GiB", "4 GiB", "6 GiB"]
    assert scale.place(3 * GiB) == 0.5
    for values in ([1.0], [0.0], [3.0, 3.0], [1e-9, 2e-9], [100.0, 101.0]):
        found = number_scale(values)
        assert all(0 <= found.place(value) <= 1 for value in values)
        assert 2 <= len(found.ticks) <= 8


def test_a_logarithmic_axis_has_a_place_for_zero() -> None:
    scale = log_scale([0.0, 1e-5, 3e-2])
    assert scale.ticks[0][1] == "0"
    assert 0 == scale.place(0.0) < scale.place(1e-5) < scale.place(3e-2) <= 1
    assert log_scale([0.0, 0.0]).place(0.0) == 0
    assert [label for _, label in log_scale([2.0, 300.0]).ticks] == ["1", "10", "100", "1000"]


def test_a_sweep_leaves_three_files_and_tells_what_went_wrong(tmp_path: Path) -> None:
    saved_sweep(tmp_path)
    summary = write_sweep(tmp_path)
    assert [path.name for path in summary.files] == ["sweep.json", "sweep.csv", "sweep.html"]
    assert all(path.stat().st_size > 1000 for path in summary.files)
    assert summary.exit_code == 5
    troubles = {trouble.job: trouble for trouble in summary.troubles}
    assert list(troubles) == ["10", "11", "12", "13", "14"]
    assert troubles["11"].status == "killed"
    assert "SIGKILL" in troubles["11"].message
    assert len(summary.rows) == 15


def test_writing_a_sweep_again_gives_the_same_bytes_and_no_other_files(tmp_path: Path) -> None:
    saved(tmp_path, "0", run())
    first = [path.read_bytes() for path in write_sweep(tmp_path).files]
    assert [path.read_bytes() for path in write_sweep(tmp_path).files] == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "sweep.csv", "sweep.html", "sweep.json"]


def test_a_sweep_that_completed_has_no_troubles_and_code_0(tmp_path: Path) -> None:
    saved(tmp_path, "0", run())
    summary = write_sweep(tmp_path)
    assert (summary.exit_code, summary.troubles) == (0, ())
    assert "What went wrong" not in summary.files[-1].read_text()


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be written"):
        write_html([], {}, tmp_path / "no" / "a.html")


def in_chromium(path: Path, profile: Path) -> str:
    """The page's elements after its scripts have run."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def first_column(dom: str) -> list[str]:
    """The jobs in the order of the table's lines."""
    return [part.split("<")[0] for part in dom.split('<th scope="row"')[1:] for part in [part.split(">", 1)[1]]]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_browser_shows_the_rows_and_sorts_them(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for job, precision in (("0", "fp32"), ("1", "bf16"), ("10", "fp16")):
        saved(sweep, job, run(generating(precision)))
    saved(sweep, "2", run(memory={}, outcome=None))
    written_page = write_sweep(sweep).files[-1]
    dom = in_chromium(written_page, tmp_path / "profile")
    assert first_column(dom) == ["0", "1", "2", "10"]
    assert dom.count('<button type="button">') == dom.count('scope="col"')

    text = written_page.read_text(encoding="utf-8")
    for presses, title, order in (
        (1, "tokens/s", ["1", "10", "0", "2"]), (2, "tokens/s", ["0", "10", "1", "2"]), (2, "job", ["10", "2", "1", "0"]),
    ):  # fmt: skip
        press = (
            f"<script>for (let i = 0; i < {presses}; i++) [...document.querySelectorAll('th button')]"
            f".find((button) => button.textContent === '{title}').click()</script>"
        )
        pressed = tmp_path / "pressed.html"
        start, _, rest = text.partition('<meta http-equiv="Content-Security-Policy"')
        pressed.write_text(start + rest.partition(">")[2].replace("</body>", f"{press}</body>"), encoding="utf-8")
        assert first_column(in_chromium(pressed, tmp_path / "profile")) == order


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_browser_runs_nothing_that_stands_in_a_record(tmp_path: Path) -> None:
    saved_sweep(tmp_path / "sweep")
    dom = in_chromium(write_sweep(tmp_path / "sweep").files[-1], tmp_path / "profile")
    assert "<img" not in dom
    assert "<title>Sweep " in dom
