"""Everything that relies on uvicorn's internals: requests and responses in one piece, and deadlines.

`install` is the only entrance: it gives a uvicorn config our classes, as far as they fit the installed version. `fits`
says what does not fit and why. Then uvicorn's own classes serve: slower and with fewer deadlines, but with the same
answers.
"""
