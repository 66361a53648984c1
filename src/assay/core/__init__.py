"""The Transformer itself: config, trunk, block, state, generation, sites, and the registry of parts."""
