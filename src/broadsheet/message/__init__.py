"""Messages: who sent each message of a journal, when, and which messages are committed. No IO.

A journal holds bytes. This package finds where a message ends (`framing`), which producer sent it and when
(`uuid`, `clock`), and to which journal a key belongs (`mapping`). It decides which messages a
read-committed reader sees: `columns` and `spans` take whole spans at once. `producer_state` holds the
states of all producers, which the journal's owner stores at index points so that a reader may start there;
`stored_index` encodes them. `stamper` stamps messages and makes their acknowledgements.

UUIDs, fixed framing and mappings are byte-compatible with Gazette. Invariants: a message is a duplicate if
its clock is at or below the last acknowledged clock of its producer in its journal. A message is committed
by itself (OUTSIDE), or by one acknowledgement with a greater clock. Source: paper "Exactly-once Semantics in
Gazette"; journals.28-30.
"""
