"""What every benchmark has: its options, prompts and last line, and models made for a measurement."""
