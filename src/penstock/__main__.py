"""`python -m penstock`: the command, where nothing is on the path but Python."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
