"""Durable store of sessions and turns: SQLite in WAL mode, committed before a reply is sent."""
