"""Files of events: an export in parts, a stream in batches, and the journal that says which of them are whole."""
