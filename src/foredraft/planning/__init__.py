"""How far to draft and from whom: measured costs, observed acceptance, one price for a row."""
