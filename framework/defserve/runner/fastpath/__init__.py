"""Everything that relies on uvicorn's internals: requests and responses in one piece, and deadlines.

`install` is the one seam: it gives a uvicorn config the classes that fit, and `fits` says what does not and why. Where
nothing fits, uvicorn serves as it is, only slower and with fewer deadlines. To a client both look alike.

May import: `transports.asgi`.
"""
