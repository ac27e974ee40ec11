"""Native: the door that serves the methods of a node's roles over the native protocol.

Each method has a row, which names the capability that a caller needs; a method without a row cannot be
called. The door starts last, when every role has offered its methods, and closes first. Source: access.2,
node.1.
"""
