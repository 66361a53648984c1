"""How often blocks run, and in which order."""
