"""Models: what they are, where they lie, and how they run."""
