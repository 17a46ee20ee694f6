"""Real servers for tests, benchmarks and chaos: obtained, started on loopback, ended with their users."""
