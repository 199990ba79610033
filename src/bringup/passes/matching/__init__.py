"""Finding a pattern with the native engine: `program` makes it ready, `native_matcher` searches."""
