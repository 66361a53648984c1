"""Number formats, and models whose weights are held in them."""
