"""Planted bugs: each takes one guard out of the production code, and a named check must see it.

A domain registers its own in `planted_<domain>.py` as `MUTANTS`. `python -O -m tests.mutants find NAME`
looks for a seed that catches one, shrinks its plan and stores it in `plans/`; `measure` counts seeds to
catch; `check` runs each once on its stored plan, which is what CI does. `-O` takes out every assertion and
`check()`: what is left is the checkers.
"""
