"""Faults on purpose, in real processes, and a checker that counts what became of every message."""
