"""The command line: `python -m runner [key=value …]`. Workers import this module again, so it imports nothing."""


def main() -> None:
    """Run the command line and exit with its code."""
    import sys

    from runner.door.main import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
