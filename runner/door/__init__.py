"""The Hydra door: schemas, help, and mistakes told in one line."""
