"""AMD's devices as the kernel driver shows them in /sys."""

import re
from collections.abc import Iterator, Mapping

from runner.hardware.dtypes import gfx_name, rocm_dtypes
from runner.hardware.sources import Sources
from runner.hardware.value import Accelerator, Figure, Survey

_AMD = "0x1002"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def survey_amd(sources: Sources) -> Survey:
    """Return the devices that ROCm shows to this process; torch calls them cuda:N as well."""
    cards = list(_compute_nodes(sources)) or list(_display_cards(sources))
    visible, hidden_by = _visible(cards, sources.environment)
    return Survey(
        devices=tuple(_accelerator(sources, folder, target, index) for index, (folder, target) in enumerate(visible)),
        hidden=tuple(_name(sources, *card) for card in cards if card not in visible),
        hidden_by=hidden_by,
    )


def _compute_nodes(sources: Sources) -> Iterator[tuple[str, int | None]]:
    """Yield the device folder and gfx target version of each compute node, in the order in which ROCm numbers them."""
    nodes = sources.path(_NODES)
    numbers = sorted(int(node.name) for node in nodes.glob("*") if node.name.isdecimal()) if nodes.is_dir() else []
    for number in numbers:
        text = sources.read(f"{_NODES}/{number}/properties") or ""
        facts = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
        if facts.get("drm_render_minor"):  # 0 on the nodes that are CPUs
            folder = f"/sys/class/drm/renderD{facts['drm_render_minor']}/device"
            yield folder, facts.get("gfx_target_version") or None


def _display_cards(sources: Sources) -> Iterator[tuple[str, int | None]]:
    """Yield AMD's cards where the compute driver's topology cannot be read."""
    cards = [card for card in sources.path("/sys/class/drm").glob("card*") if card.name[4:].isdecimal()]
    for card in sorted(cards, key=lambda card: int(card.name[4:])):
        folder = f"/sys/class/drm/{card.name}/device"
        if (sources.read(f"{folder}/vendor") or "").strip() == _AMD and sources.path(
            f"{folder}/mem_info_vram_total"
        ).exists():
            yield folder, None


def _visible(
    cards: list[tuple[str, int | None]], environment: Mapping[str, str]
) -> tuple[list[tuple[str, int | None]], str]:
    """Return what the environment leaves: ROCR's list first, then HIP's (CUDA's stands in for HIP's)."""
    names = [name for name in _VARIABLES if name in environment]
    if "HIP_VISIBLE_DEVICES" in names and "CUDA_VISIBLE_DEVICES" in names:
        names.remove("CUDA_VISIBLE_DEVICES")
    for name in names:
        chosen = []
        for entry in environment[name].split(","):
            if not entry.strip().isdecimal() or int(entry) >= len(cards):
                break
            chosen.append(cards[int(entry)])
        cards = chosen
    return cards, " ".join(f"{name}={environment[name]}" for name in names)


def _accelerator(sources: Sources, folder: str, target: int | None, index: int) -> Accelerator:
    total = sources.read_int(f"{folder}/mem_info_vram_total")
    used = sources.read_int(f"{folder}/mem_info_vram_used")
    source = f"{folder}/mem_info_vram_"
    free = None if total is None or used is None else max(total - used, 0)
    dtypes, emulated, reason = rocm_dtypes(target)
    return Accelerator(
        device=f"cuda:{index}",
        name=_name(sources, folder, target),
        backend="rocm",
        total=Figure(total, f"{source}total"),
        free=Figure(free, f"{source}total less {source}used"),
        dtypes=dtypes,
        emulated_dtypes=emulated,
        dtypes_source=reason,
        notes=() if total is not None else (f"cuda:{index}: its memory is unknown, {source}total cannot be read",),
    )


def _name(sources: Sources, folder: str, target: int | None) -> str:
    name = (sources.read(f"{folder}/product_name") or "").strip()
    return name or (f"AMD {gfx_name(target)}" if target is not None else "AMD device")
