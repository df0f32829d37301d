"""The native CPU pass as a Model: packing, blocks, sampling."""
