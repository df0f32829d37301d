"""The search for sub-layers to draft with."""
