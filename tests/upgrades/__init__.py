"""New migrations beside old code: what they may do, and the released schemas that they start from."""
