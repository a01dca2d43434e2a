"""`python -m fedrecall`."""

from fedrecall.cli import main

main()
