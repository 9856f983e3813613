"""What control groups leave to this process: v1 and v2, from the own group up to the root."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from runner.hardware.sources import Sources
from runner.hardware.value import Figure

NO_LIMIT = 2**60
"""v1 writes the largest number of whole pages, about 2**63, where v2 writes `max`"""

_INHERITED = "hierarchical_memory_limit in memory.stat"
"""v1's least limit among a group and its parents, also of those that a container cannot see: named last"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    """One group's limit and what it leaves."""

    limit: Figure
    headroom: Figure
    """limit less (usage less reclaimable page cache), at least 0"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    version: int
    root: str
    """the group that is visible at the mount point"""
    point: str


def cgroup_limits(sources: Sources) -> tuple[CgroupLimit, ...]:
    """Return the memory limits that hold for this process, the own group's first; empty without any."""
    own = _own_groups(sources)
    limits: list[CgroupLimit] = []
    for mount in _mounts(sources):
        if mount.version in own:
            for folder in _upwards(mount, own[mount.version]):
                limits += _limits_of(sources, mount, folder)
    return tuple(sorted(limits, key=lambda found: _INHERITED in found.limit.source))


def _own_groups(sources: Sources) -> dict[int, str]:
    """Return the own group's path for version 1 (its memory controller) and for version 2."""
    groups: dict[int, str] = {}
    for line in (sources.read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            groups[1] = path
        elif number == "0" and not controllers:
            groups[2] = path
    return groups


def _mounts(sources: Sources) -> Iterator[_Mount]:
    """Yield the mounts that can hold memory limits; proc(5) names the fields of mountinfo."""
    for line in (sources.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4])
        if kind[0] == "cgroup2":
            yield _Mount(version=2, root=root, point=point)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mount(version=1, root=root, point=point)


def _upwards(mount: _Mount, group: str) -> Iterator[PurePosixPath]:
    """Yield the own group's folder and its parents up to the mount point.

    A container may see its group under another name than /proc/self/cgroup gives: then only the mount point,
    which is the container's own group, can be asked.
    """
    point = PurePosixPath(mount.point)
    path, root = PurePosixPath(group), PurePosixPath(mount.root)
    relative = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
    if ".." in relative.parts:
        relative = PurePosixPath()
    folder = point / relative
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder


def _limits_of(sources: Sources, mount: _Mount, folder: PurePosixPath) -> Iterator[CgroupLimit]:
    """Yield the limits of one group. memory.high only throttles, but without swap nothing gets past it."""
    group = "/" + str(folder.relative_to(mount.point)).removeprefix(".")
    where = group if mount.root == "/" else f"{group} below {mount.root}"
    stat = _statistics(sources.read(folder / "memory.stat"))
    if mount.version == 2:
        usage = sources.read_int(folder / "memory.current")
        found = {name: sources.read_int(folder / name) for name in ("memory.max", "memory.high")}
        cache = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    else:
        usage = sources.read_int(folder / "memory.usage_in_bytes")
        found = {"memory.limit_in_bytes": sources.read_int(folder / "memory.limit_in_bytes")}
        found[_INHERITED] = stat.get("hierarchical_memory_limit")
        cache = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    seen: set[int] = set()
    for name, limit in found.items():
        if limit is None or limit >= NO_LIMIT or limit in seen:
            continue
        seen.add(limit)
        source = f"cgroup v{mount.version} {name} of {where}"
        yield CgroupLimit(limit=Figure(limit, source), headroom=_headroom(limit, usage, cache, source))


def _headroom(limit: int, usage: int | None, cache: int, source: str) -> Figure:
    """Return what is left below `limit`.

    The two file lists are what the kernel takes back before it kills; shared memory lies on the anonymous lists
    although the statistics count it as cache, so it stays used.
    """
    if usage is None:
        return Figure(limit, f"{source}, usage unknown")
    return Figure(max(limit - max(usage - cache, 0), 0), source)


def _statistics(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _unescape(field: str) -> str:
    """Return a path as it is; mountinfo writes blanks and backslashes as three octal digits."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
