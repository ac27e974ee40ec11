"""Tests of `broadsheet.base`."""
