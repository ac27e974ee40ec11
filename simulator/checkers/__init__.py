"""Checkers: what must be true of a history, whoever made it. They read operations and nothing of the system.

`linearizable` for small histories of any model, `versioned` for huge ones whose answers carry versions,
`conservation` for exactly-once, `sequencer` for committed messages, `agreement` for replicated logs. All
raise `Violation` with the operations that cannot stand together.
"""
