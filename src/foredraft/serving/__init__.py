"""A loaded model as the backend of a server."""
