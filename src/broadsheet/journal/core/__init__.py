"""Core: the part of journals that decides, without IO.

The pipeline is the machine. Specs, fragments, registers and log records are values.
Source: design/journals.md.
"""
