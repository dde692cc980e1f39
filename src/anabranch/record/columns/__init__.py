"""Record batches to Arrow columns, and back. Arrow is imported where it is used, never at import."""
