"""The native wire: framed, multiplexed, flow-controlled streams between processes (wire.1).

`frame` has the bytes, `connection` the sans-IO state of one connection, `datapath` bytes to runs and
replies to bytes, `shell` the socket's side with its slabs; `server`, `client`, `pool` and `routed` are
what domains use, and `method` and `run` what they offer. A payload never passes through a codec. Limits
stand in `limits`.

Invariants: a request is answered exactly once, or its connection is lost; a lost connection turns what was
sent and not answered into `Unknown`, never into a no; no peer makes us hold more bytes than `limits` says.
Source: wire.1-11; docs/protocols/native.md.
"""
