"""Messages in journals: who sent what when, and what of it is committed. No IO.

A journal holds bytes; this package says where a message ends (`framing`), which producer sent it and when
(`uuid`, `clock`), to which journal a key belongs (`mapping`), and which messages a read-committed reader
sees (`sequencer`, one message at a time; `columns` and `spans`, whole spans at once; both give the same
answer). `producer_state` is what a journal's owner stores at index points so that a reader may start there.
`publisher` frames and acknowledges.

Byte-compatible with Gazette's UUIDs, fixed framing and mappings. Invariants: per producer and journal the
last acknowledged clock decides what is a duplicate; a message is committed by itself (OUTSIDE) or by one
acknowledgement of a greater or equal clock. Source: paper "Exactly-once Semantics in Gazette";
journals.28-30.
"""
