"""Who may do what: capabilities, tokens, and the one check in front of every door (DESIGN 10).

`capability` has the bits, `claims` what a token says, `tokens` signs and verifies them (the only importer
of PyJWT), `authorizer` decides. Nothing here knows a method, a door or a domain. Source: Gazette's
capability tokens (reference/gazette.md, authorization); reliability 5.2 S1-S4.
"""
