"""Tests of the access checks."""
