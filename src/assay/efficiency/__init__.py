"""What makes a model cheaper: smaller caches, sparser reading, fewer bits, smaller models."""
