"""Tests of the simulator, and of what it finds."""
