"""Benchmarks. `docs/benchmarks.md` says what is measured and what came out.

A result is a ratio between things that ran on the same machine within the same minute, never a bare
time. So everything that is compared runs in turns, round by round, each in a process of its own, and
start-up is left out for all alike.
"""
