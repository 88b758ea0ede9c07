"""The runbook's name of `aibs prove-takeover`."""

import sys

from aibs.cli.app import run

if __name__ == "__main__":
    run(["prove-takeover", *sys.argv[1:]])
