"""Brokers: where messages wait that say which row is due."""
