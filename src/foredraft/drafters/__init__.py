"""Drafters: independent siblings, each a way to guess ahead."""
