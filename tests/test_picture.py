import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from runner.picture import memory_picture
from runner.record import Record
from runner.resolve import resolve
from runner.units import GiB
from tests.makers import card, checkpoint, footprint, processor, request
from tests.test_record import record

SVG = "{http://www.w3.org/2000/svg}"
PREDICTED = (
    ("load", {"parameters": GiB}),
    ("forward", {"parameters": GiB, "workspace": GiB // 2}),
    ("backward", {"parameters": GiB, "activations": GiB}),
)


def pictured(**overrides: Any) -> Record:
    """A record with a predicted and a measured timeline."""
    found = footprint(2 * GiB, overhead=GiB // 4, load_overhead=GiB // 4, timeline=PREDICTED, load_peak=GiB)
    plan = resolve(request(), processor(), checkpoint(), predict=lambda settings: found, num_layers=0)
    timeline = ((0.0, "load", GiB), (0.1, "work", 2 * GiB), (0.2, "work", GiB), (0.3, "unload", GiB // 4))
    return record(**{"plan": plan, "hardware": processor(), "timeline": timeline} | overrides)


def drawn(made: Record) -> ElementTree.Element:
    """The picture, which must be XML."""
    return ElementTree.fromstring(memory_picture(made))


def test_each_category_is_an_area_and_the_measured_size_a_line() -> None:
    picture = drawn(pictured())
    assert len(picture.findall(f"{SVG}polygon")) == 4  # overhead, parameters, activations, workspace
    (line,) = picture.findall(f"{SVG}polyline")
    assert len((line.get("points") or "").split()) == 4
    words = [text.text for text in picture.findall(f"{SVG}text")]
    assert {"load", "work", "unload", "activations", "measured (resident)"} <= set(words)


def test_the_highest_measured_point_is_the_highest_on_the_page() -> None:
    (line,) = drawn(pictured()).findall(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in (line.get("points") or "").split()]
    assert heights.index(min(heights)) == 1


def test_a_budget_near_the_peak_is_a_line_and_one_far_above_is_not() -> None:
    near = pictured()
    assert near.plan is not None
    with_budget = replace(near, plan=replace(near.plan, budget=3 * GiB))
    far = replace(near, plan=replace(near.plan, budget=300 * GiB))
    assert [len(drawn(made).findall(f"{SVG}line[@class='budget']")) for made in (with_budget, far)] == [1, 0]


def test_sizes_on_the_axis_are_round_and_reach_beyond_all_that_is_drawn() -> None:
    picture = drawn(pictured())
    words = [text.text for text in picture.findall(f"{SVG}text")]
    assert {"0", "1 GiB", "2 GiB"} <= set(words)
    (shade,) = picture.findall(f"{SVG}rect[@class='phase']")
    heights = [
        float(point.split(",")[1])
        for shape in picture.findall(f"{SVG}polygon")
        for point in shape.attrib["points"].split()
    ]
    assert float(shade.attrib["y"]) <= min(heights)


def test_on_an_accelerator_the_hosts_memory_is_not_drawn_over_the_devices() -> None:
    made = pictured()
    assert made.plan is not None
    there = replace(
        made, plan=replace(made.plan, settings=replace(made.plan.settings, device="cuda:0")), hardware=card()
    )
    assert drawn(there).findall(f"{SVG}polyline") == []


@pytest.mark.parametrize(
    "made", [pictured(timeline=()), pictured(plan=None), pictured(plan=None, timeline=(), checkpoint=None)]
)
def test_a_run_that_did_not_come_far_is_drawn_as_far_as_it_came(made: Record) -> None:
    assert drawn(made).tag == f"{SVG}svg"


def test_names_are_escaped() -> None:
    made = pictured(checkpoint=checkpoint(id='<script>"&'))
    assert "<script>" not in memory_picture(made)
    assert '<script>"&' in (drawn(made).findtext(f"{SVG}title") or "")
