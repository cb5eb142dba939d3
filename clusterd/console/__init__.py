"""The console process: metrics, health and a page for operators over HTTP, from the introspection relations.

It is a reader beside the controller, as any program may be: it peeks and subscribes to relations over the
daemon's socket, and knows nothing that they do not say. It loads neither numpy nor numba, so it costs some
30 MB and a fraction of a second at start.
"""
