"""JSON Schema to the tokens that may come next."""
