"""GGUF files: their header, what follows for config, tokenizer and tensors, and folders that link to them."""
