"""A loaded model seen otherwise: some of its sub-layers, some of its tokens."""
