"""Tests of `broadsheet.observe`."""
