import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from runner.errors import CheckpointError, Killed, OutOfMemory, WorkloadError
from runner.isolate import Message, Send, run_isolated

pytestmark = pytest.mark.slow


def ignore(message: Message) -> None:
    pass


def add(send: Send, a: int, b: int) -> int:
    send(Message(kind="stats", value=a))
    return a + b


def imported(send: Send) -> bool:
    return "torch" in sys.modules


def die(send: Send, signal_number: int) -> None:
    send(Message(kind="phase", value="decode"))
    os.kill(os.getpid(), signal_number)
    time.sleep(10)


def fail(send: Send, how: str) -> None:
    if how == "runner":
        raise CheckpointError("a.safetensors ends at byte 7", remedies=[{"override": "x=1"}])
    if how == "exit":
        os._exit(3)
    raise ValueError("boom")


def take_memory(send: Send, size: int) -> int:
    held = bytearray(os.urandom(1) * size)
    time.sleep(0.5)
    return len(held)


def test_a_worker_returns_its_result_and_its_messages() -> None:
    seen: list[Any] = []
    assert run_isolated(add, 2, 3, on_message=lambda m: seen.append(m.value) if m.kind == "stats" else None) == 5
    assert seen == [2]


def test_a_worker_has_torch_and_the_parent_needs_none() -> None:
    code = """
        import sys
        from runner.isolate import run_isolated
        from tests.test_isolate import ignore, imported
        if __name__ == "__main__":
            print(run_isolated(imported, on_message=ignore), "torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_worker_tells_the_signal_and_the_phase(signal_number: int) -> None:
    with pytest.raises(Killed, match=f"killed in decode by {signal.Signals(signal_number).name}"):
        run_isolated(die, signal_number, on_message=ignore)


def test_an_error_of_ours_arrives_whole() -> None:
    with pytest.raises(CheckpointError, match="ends at byte 7") as caught:
        run_isolated(fail, "runner", on_message=ignore)
    assert caught.value.remedies == ({"override": "x=1"},)


def test_any_other_error_becomes_a_failed_workload() -> None:
    with pytest.raises(WorkloadError, match="ValueError: boom"):
        run_isolated(fail, "raise", on_message=ignore)


def test_a_worker_that_just_exits_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="exit code 3 and no result"):
        run_isolated(fail, "exit", on_message=ignore)


def test_the_parent_samples_the_workers_memory() -> None:
    sizes: list[int] = []
    run_isolated(
        take_memory, 200 * 2**20, on_message=lambda m: sizes.append(m.value[1]) if m.kind == "sample" else None
    )
    assert max(size for size in sizes if size) - min(size for size in sizes if size) > 150 * 2**20


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
        import os, time
        from pathlib import Path
        from runner.isolate import run_isolated
        from tests.test_isolate import ignore, write_pid_and_wait
        if __name__ == "__main__":
            run_isolated(write_pid_and_wait, {str(tmp_path / "pid")!r}, on_message=ignore)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    pid = int(_wait_for(tmp_path / "pid"))
    parent.kill()
    parent.wait()
    assert _gone(pid)


def test_an_interrupted_parent_ends_its_worker_and_says_so(tmp_path: Path) -> None:
    code = f"""
        from runner.errors import Interrupted
        from runner.isolate import run_isolated
        from tests.test_isolate import ignore, write_pid_and_wait
        if __name__ == "__main__":
            try:
                run_isolated(write_pid_and_wait, {str(tmp_path / "pid")!r}, on_message=ignore)
            except Interrupted as error:
                print(error)
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        pid = int(_wait_for(tmp_path / "pid"))
        parent.send_signal(number)
        output, _ = parent.communicate(timeout=30)
        assert output.startswith("interrupted;")
        assert _gone(pid)
        (tmp_path / "pid").unlink()


def write_pid_and_wait(send: Send, path: str) -> None:
    temporary = Path(f"{path}.part")
    temporary.write_text(str(os.getpid()))
    temporary.rename(path)
    time.sleep(60)


CGROUP = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(
    not os.access(CGROUP / "tasks", os.W_OK) or not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="needs root and a writable cgroup v1 memory hierarchy for a real out-of-memory kill",
)
def test_a_worker_over_its_cgroup_limit_is_told_apart_from_a_killed_one() -> None:
    with pytest.raises(OutOfMemory, match="out-of-memory killer ended the worker in load"):
        run_isolated(exceed_cgroup, on_message=ignore, phase="load")


def exceed_cgroup(send: Send) -> None:
    group = CGROUP / f"runner-test-{os.getpid()}"
    group.mkdir()
    limit = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") + 2**28
    (group / "memory.limit_in_bytes").write_text(str(limit))
    (group / "tasks").write_text(str(os.getpid()))
    held = bytearray(os.urandom(1) * (limit * 2))
    raise AssertionError(f"held {len(held)} bytes over a limit of {limit}")


@pytest.fixture(autouse=True)
def _remove_cgroups() -> Any:
    yield
    for group in CGROUP.glob("runner-test-*"):
        group.rmdir()


def _wait_for(path: Path) -> str:
    for _ in range(600):
        if path.exists():
            return path.read_text()
        time.sleep(0.1)
    raise AssertionError(f"{path} did not appear")


def _gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False
