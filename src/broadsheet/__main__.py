"""`python -m broadsheet`: the command line, for where no script is on the path."""

from broadsheet.cli.main import main

if __name__ == "__main__":
    main()
