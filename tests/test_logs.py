import io
import logging
import sys

import pytest

from runner.logs import ConsoleHandler, TerminalBar, terminal_bar
from runner.narrate import Narrator


def record(message: str, level: int = logging.INFO, name: str = "runner.run") -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, message, None, None)


def test_information_goes_to_stdout_and_errors_to_stderr_as_runners(capsys: pytest.CaptureFixture[str]) -> None:
    handler = ConsoleHandler()
    handler.emit(record("device      cpu"))
    handler.emit(record("it does not fit", logging.ERROR))
    shown = capsys.readouterr()
    assert shown.out == "device      cpu\n"
    assert shown.err == "runner: it does not fit\n"


def test_of_a_librarys_warning_one_line_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleHandler().emit(record("x.py:1: UserWarning: slow\n  frame #0\n  frame #1", logging.WARNING, "py.warnings"))
    assert capsys.readouterr().err == "runner: x.py:1: UserWarning: slow\n"


def test_a_label_is_set_off_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    ConsoleHandler().emit(record("device      cpu"))
    assert terminal.getvalue() == "\033[1mdevice      \033[0mcpu\n"


def test_without_a_terminal_there_is_no_bar_and_lines_come_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    assert terminal_bar() is None
    narrator = Narrator(logging.getLogger("test"))
    caplog.set_level(logging.INFO)
    narrator.progress(1, 100)
    assert caplog.messages == []
    narrator._told -= 6
    narrator.progress(50 * 2**20, 100 * 2**20)
    assert caplog.messages == ["load        50.00 MiB of 100.00 MiB (50 %)"]


def test_a_bar_gives_the_cursor_back_when_a_load_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    bar = TerminalBar()
    bar.draw("load", 10, 100)
    assert "\033[?25l" in terminal.getvalue()
    Narrator(logging.getLogger("test"), bar=bar).close()
    assert terminal.getvalue().rstrip("\r\n").rfind("\033[?25h") > terminal.getvalue().rfind("\033[?25l")
