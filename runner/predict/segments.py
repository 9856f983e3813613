"""What CUDA's caching allocator reserves for a course of allocations: whole segments, split and merged.

Rules and sizes are those of c10/cuda/CUDACachingAllocator.cpp with its default settings, for one stream. Segments are
never given back here; the real allocator gives unused ones back before it reports that memory ran out.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.units import MiB

BLOCK = 512
SMALL = 1 * MiB
"""largest size that comes from the pool of small segments"""
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB
LARGE_ALONE = 10 * MiB
"""from this size on an allocation gets a segment of its own, rounded up to 2 MiB"""
ROUND_LARGE = 2 * MiB


@dataclass(slots=True, eq=False)
class _Block:
    size: int
    address: int
    small: bool
    free: bool = False
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass(slots=True)
class CachingAllocator:
    """Reserved bytes of one device, by replaying allocations and frees."""

    reserved: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    """whether small → (size, address) of free blocks, ordered"""
    _blocks: dict[int, _Block] = field(default_factory=dict)
    """address → free block"""
    _next: int = 0

    def allocate(self, num_bytes: int) -> _Block:
        """Return the best-fitting free block, split where enough is left over, or one from a new segment."""
        size = max(BLOCK, _round_up(num_bytes, BLOCK))
        small = size <= SMALL
        pool = self._free[small]
        index = bisect_left(pool, (size, -1))
        if index < len(pool):
            block = self._take(self._blocks[pool[index][1]])
        else:
            block = _Block(size=_segment(size), address=self._next, small=small)
            self.reserved += block.size
            self._next += block.size + BLOCK
        left = block.size - size
        if left >= BLOCK if small else left > SMALL:
            rest = _Block(size=left, address=block.address + size, small=small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._give(rest)
        return block

    def release(self, block: _Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            before.size, before.after = before.size + block.size, after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            self._take(after)
            block.size, block.after = block.size + after.size, after.after
            if after.after is not None:
                after.after.before = block
        self._give(block)

    def _give(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.address))
        self._blocks[block.address] = block

    def _take(self, block: _Block) -> _Block:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]
        block.free = False
        return block


def reserved_peak(events: Iterable[tuple[int, int]]) -> int:
    """Return the most bytes reserved over `events`: (number of a storage, its new size in bytes; 0 is given back)."""
    allocator, held = CachingAllocator(), dict[int, _Block]()
    for number, num_bytes in events:
        block = held.pop(number, None)
        if num_bytes:
            held[number] = allocator.allocate(num_bytes)
        if block is not None:
            allocator.release(block)
    return allocator.reserved


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE_ALONE else _round_up(size, ROUND_LARGE)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
