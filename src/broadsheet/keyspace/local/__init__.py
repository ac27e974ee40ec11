"""`keyspace/local`: the Keyspace of one node, in one stream of the keyspace role's log."""
