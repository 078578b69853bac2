"""A slow twin of the engine and of Search-v0 in ordinary Python, written from the design and compared step by step."""
