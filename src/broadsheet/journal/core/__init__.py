"""The deciding half of journals, without IO.

Specs, names of fragments, registers and records are values; the pipeline is the machine.
Source: design/journals.md.
"""
