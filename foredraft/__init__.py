"""Lossless speculative decoding: several tokens for one reading of a language model's weights, the text unchanged."""

from foredraft._version import __version__

__all__ = ["__version__"]
