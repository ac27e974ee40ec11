"""Small helpers that tests of several parts share."""
