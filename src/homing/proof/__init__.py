"""Commands that prove on your machine what is promised: under load, and under faults."""
