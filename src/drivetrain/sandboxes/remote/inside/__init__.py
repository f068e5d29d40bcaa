"""Runs inside a cloud sandbox: the standard library of Python 3.9+ only."""
