"""`python -m pasearch`: the command line."""

from pasearch.cli import main

main()
