"""`python -m rocknroll.sandbox.cli` is `rock`."""

from rocknroll.sandbox.cli import main

main()
