"""A message, whatever lane it is in: what is shown of it, and what the desk asks of its lane."""
