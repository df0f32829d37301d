"""Measurements, in rooms by theme: ``python -m benchmarks.ROOM.NAME`` from the root of the repository."""
