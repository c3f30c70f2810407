"""What a project publishes: builds it, describes it, and checks that the parts agree.

Building and uploading run other programs. Nothing is uploaded unless the user asks for it. The wheel decides names and
versions.
"""
