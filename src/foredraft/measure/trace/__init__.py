"""One generation round by round."""
