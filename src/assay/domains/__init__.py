"""What a model is for."""
