"""Mutation testing: `make mutate` changes the code in one place at a time, and somebody must notice.

Operators and the session (a sqlite file) are cosmic-ray's; coverage.py tells which lines each test runs. The
sample, the choice of tests, and the workers that fork for each change are ours. No part of CI. Source: ADR
0162 and 0163.
"""
