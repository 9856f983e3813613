from runner.predict.segments import CachingAllocator, reserved_peak
from runner.units import MiB


def test_small_tensors_share_a_segment_of_2_mib() -> None:
    assert reserved_peak([(number, 512 * 1024) for number in range(4)]) == 2 * MiB
    assert reserved_peak([(number, 512 * 1024) for number in range(5)]) == 4 * MiB


def test_middling_tensors_share_a_segment_of_20_mib() -> None:
    assert reserved_peak([(0, 9 * MiB), (1, 9 * MiB)]) == 20 * MiB
    assert reserved_peak([(0, 9 * MiB), (1, 9 * MiB), (2, 9 * MiB)]) == 40 * MiB


def test_a_large_tensor_gets_a_segment_rounded_up_to_2_mib() -> None:
    assert reserved_peak([(0, 10 * MiB)]) == 10 * MiB
    assert reserved_peak([(0, 11 * MiB)]) == 12 * MiB


def test_what_was_given_back_is_used_again() -> None:
    assert reserved_peak([(0, 30 * MiB), (0, 0), (1, 30 * MiB)]) == 30 * MiB


def test_a_block_too_small_for_the_next_tensor_stays_reserved() -> None:
    assert reserved_peak([(0, 30 * MiB), (0, 0), (1, 32 * MiB)]) == 62 * MiB


def test_neighbours_that_are_free_merge() -> None:
    events = [(0, 8 * MiB), (1, 8 * MiB), (0, 0), (1, 0), (2, 9 * MiB), (3, 9 * MiB)]
    assert reserved_peak(events) == 20 * MiB


def test_a_tensor_that_grows_holds_both_sizes_at_once() -> None:
    assert reserved_peak([(0, 12 * MiB), (0, 14 * MiB)]) == 26 * MiB


def test_a_remainder_up_to_1_mib_is_not_split_off_in_the_large_pool() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(13 * MiB)
    assert (first.size, allocator.reserved) == (14 * MiB, 14 * MiB)


def test_merging_from_both_sides_gives_the_whole_segment_back() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(6 * MiB) for _ in range(3)]
    for index in (0, 2, 1):
        allocator.release(blocks[index])
    assert allocator.allocate(9 * MiB).address == blocks[0].address
    assert allocator.allocate(9 * MiB).size == 9 * MiB
    assert allocator.reserved == 20 * MiB
