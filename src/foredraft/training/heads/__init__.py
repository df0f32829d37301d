"""Heads and draft models, trained in torch."""
