"""What a model does, what it can do, and where it fails."""
