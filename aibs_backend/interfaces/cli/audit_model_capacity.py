"""The runbook's name of `aibs audit`."""

import sys

from aibs.cli.app import run

if __name__ == "__main__":
    run(["audit", *sys.argv[1:]])
