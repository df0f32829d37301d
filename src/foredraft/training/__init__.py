"""What is found out about a model by running it, so that it drafts better; torch-free so far."""
