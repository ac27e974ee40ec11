"""`broadsheet`, and `python -m broadsheet`: imports the command line, and runs it.

The import takes a while. A Ctrl-C in that time ends the process in silence, without a traceback.
"""

import signal


def main() -> None:
    """Import the command line, and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # `nohup` and `&` may ignore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from broadsheet.cli.main import main as command_line  # noqa: PLC0415 - what the signal may interrupt.

    command_line()


if __name__ == "__main__":
    main()
