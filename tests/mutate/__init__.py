"""Mutation testing: `make mutate` changes the code in one place at a time, and somebody must notice.

Operators and the session (a sqlite file) are cosmic-ray's; the sample, the tests of each module, and the
workers are ours. No part of CI: it takes hours, and finds the tests that are missing. Source: ADR 0162.
"""
