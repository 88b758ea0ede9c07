"""`python -m aibs` is the console script."""

from aibs.cli import main

if __name__ == "__main__":
    main()
