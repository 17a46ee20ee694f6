"""`python -m homing` is `homing`."""

from homing.cli import main

main()
