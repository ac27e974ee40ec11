"""Consume: committed messages of journals for a program, from a position that it can keep."""
