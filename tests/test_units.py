import pytest

from runner.units import GiB, KiB, MiB, format_count, format_seconds, format_size, parse_size, size_argument


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 * GiB), ("512 MiB", 512 * MiB), ("1.5gib", 3 * GiB // 2), ("1GB", 10**9), ("4096", 4096), (17, 17)],
)
def test_a_size_is_read_with_or_without_a_unit(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "6Gb/s", "GiB", "-1GiB", "0", "six", "1e400GiB", True, 1.5, None])
def test_what_is_no_size_is_refused_with_the_way_to_write_one(text: object) -> None:
    with pytest.raises(ValueError, match=r"write 6GiB, 512MiB or plain bytes|at least one byte"):
        parse_size(text)  # type: ignore[arg-type]


def test_a_large_plain_number_keeps_every_byte() -> None:
    assert parse_size(str(2**53 + 1)) == 2**53 + 1


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KiB, "1.00 KiB"),
        (3 * GiB // 2, "1.50 GiB"),
        (-GiB, "-1.00 GiB"),
        (None, "unknown"),
    ],
)
def test_a_size_is_said_in_the_largest_unit_that_fits(size: int | None, words: str) -> None:
    assert format_size(size) == words


def test_a_size_typed_back_is_never_smaller() -> None:
    for size in (1, 1000, 5 * MiB + 1, 7 * GiB + 12345, 123 * GiB):
        assert size <= parse_size(size_argument(size)) <= size * 1.011 + 1


def test_counts_and_times_have_usual_suffixes() -> None:
    assert (format_count(1_720_600_000), format_count(134_500_000), format_count(12)) == ("1.721 B", "134.5 M", "12")
    assert (format_seconds(0.0123), format_seconds(4.56), format_seconds(123)) == ("12.3 ms", "4.56 s", "2 min 03 s")


def test_a_part_of_a_byte_is_no_size() -> None:
    with pytest.raises(ValueError, match="not a whole number of bytes"):
        parse_size("1.5")
    assert parse_size("1.5KiB") == 1536
