"""One short file for each family of checkpoints: names, config both ways, reshapes."""
