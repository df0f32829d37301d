"""The native library: its C++ sources, and what opens it. docs/native.md."""
