"""The operator's desk: the messages of all lanes as one, for pages and for actions on many at once."""
