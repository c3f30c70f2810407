"""The guarded way out: an HTTP client that reaches public addresses only, whoever wrote the URL."""
