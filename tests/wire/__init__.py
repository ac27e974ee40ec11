"""Tests of the native wire."""
