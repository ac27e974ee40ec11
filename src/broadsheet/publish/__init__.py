"""Publish: messages from a program into journals, each once for readers of committed messages."""
