"""Trained heads: their files, what others trained, and how they run beside a target."""
