"""The article: pure, knowing no model, no server and no torch."""
