"""Tensors of a checkpoint by name, from safetensors or from memory."""
