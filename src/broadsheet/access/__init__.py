"""Access: capabilities, tokens, and the one check before every method of every door (access.1-8).

`capability` has the bits, `claims` what a token says, `tokens` signs and verifies them (the only importer
of PyJWT), `authorizer` decides. Nothing here knows a method, a door or a domain. Source: Gazette's
capability tokens (access.5).
"""
