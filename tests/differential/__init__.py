"""The same bytes sent to our HTTP server and to servers of other people: what each of them takes for a request."""
