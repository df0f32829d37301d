"""The verbs under ``train``."""
