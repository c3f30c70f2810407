"""The kernel behind the page, in one of two ways: over its control socket, or over MGP's methods.

The control socket tells everything and is there for the user who runs the kernel. MGP's methods work at any address,
and tell what the kernel tells its operators.

May import: `host.client`, `inspector.kernels`, `inspector.protocol`, `kernel.control.asking`, `wire`.
"""
