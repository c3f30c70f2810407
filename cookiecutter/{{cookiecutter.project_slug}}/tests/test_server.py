{{ body("test_server.py") }}
