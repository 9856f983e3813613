"""Files that appear whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

PART = ".part"


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, flushed to the disk, text in UTF-8 with its line ends as they are.

    The bytes go into a file beside it that is then renamed, so that whoever reads `path`, and whatever ends this
    process at any moment, finds the old content or the new. Raises OSError.
    """
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    with written_aside(path) as part, open(part, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give the path of a file to write beside `path`; it takes its place in the end, or is removed after an error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left below `folder`."""
    for part in folder.rglob(f".*{PART}"):
        part.unlink(missing_ok=True)
