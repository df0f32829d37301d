"""Names of models to folders: aliases, fetching, the default model's wheel."""
