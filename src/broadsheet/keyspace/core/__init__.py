"""The map, its transactions and its history, without IO."""
