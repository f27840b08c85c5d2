"""Publishing: by hand, from Django's signals, by triggers, and in batches by threads."""
