"""Reading the log without Django, in the shape of Arrow: addresses, topics, offsets, ranges and rows."""
