"""The version, alone in its file so that a build reads it without importing the library."""

__version__ = "0.1.0"
