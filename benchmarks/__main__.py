"""Runs what `make bench` promises: the cost of the event journal. The long proof runs by itself: `python -m benchmarks.two_workers`."""

from benchmarks.journal import main

main()
