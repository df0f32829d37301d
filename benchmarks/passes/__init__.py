"""What a pass over a model costs, by rows, tiers and types, and what starting costs before the first."""
