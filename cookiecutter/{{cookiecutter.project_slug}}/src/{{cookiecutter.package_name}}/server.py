{{ body("server.py") }}
