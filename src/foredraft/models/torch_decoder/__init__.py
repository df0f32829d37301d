"""One decoder in torch for every family in the table."""
