"""The native wire: framed, multiplexed, flow-controlled streams between processes (wire.1).

`frame` has the bytes, `connection_machine` the sans-IO state of one connection, and `connection_protocol` the
side of the socket. Domains call other nodes by `client`, `pool` and `routed`, and offer methods by `server`,
`method` and `run`. Payloads never pass through a codec. All limits are in `limits`.

Invariants: a request is answered exactly once, unless its connection is lost. If a connection is lost,
requests that were sent and not answered become `Unknown`, never a refusal. No peer makes us hold more bytes
than `limits` allows.
Source: wire.1-11; docs/protocols/native.md.
"""
