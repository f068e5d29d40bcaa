"""Chaos for the whole stack: a seeded schedule of faults over a running gateway, engine and clients, then a checker."""
