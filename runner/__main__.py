"""The command line: `python -m runner [key=value …]`. Workers import this module again, so it imports nothing."""


def main() -> None:
    """Run the command line and exit with its code."""
    import signal
    import sys

    from runner.door.main import run_command_line
    from runner.errors import Interrupted

    try:
        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # once more, while the first one was told
        code = Interrupted.exit_code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is written; what is left is Python's own end
    sys.exit(code)


if __name__ == "__main__":
    main()
