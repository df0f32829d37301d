"""Retrieval: indexes over token lists, and guesses copied from them."""
