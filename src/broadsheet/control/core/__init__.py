"""The metastore's machines and values, without IO."""
