"""Event sets of any size whose truth is known, a second engine that judges them, and what the reconciliation costs on them."""
