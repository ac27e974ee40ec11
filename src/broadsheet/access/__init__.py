"""Access: capabilities, tokens, and the one check before every method of every door (access.1-8).

`capability` has the bits, `tokens` signs and verifies claims (the only importer of PyJWT), `principal` is who
calls, as the claims say, `authorizer` decides, `exposure` says who may listen beyond loopback. Nothing here
knows a method, a door or a domain. Source: Gazette's capability tokens (access.5).
"""
