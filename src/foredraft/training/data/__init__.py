"""The target's answers and what its layers hold, collected and kept on disk."""
