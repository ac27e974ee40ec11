"""The sink's decisions: no IO, no clock, no entropy."""
