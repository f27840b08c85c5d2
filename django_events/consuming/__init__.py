"""How events get out."""
