"""Claims about what a growing cache keeps."""
