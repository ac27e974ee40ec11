"""Tests of `broadsheet.runtime`."""
