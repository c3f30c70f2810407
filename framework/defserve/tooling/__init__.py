"""What the command line is made of: projects, client settings, packages, documents, lint, the development server.

None of it is needed to serve.
"""
