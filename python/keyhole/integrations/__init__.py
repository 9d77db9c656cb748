# python/keyhole/integrations/__init__.py
"""Keyhole inside other libraries. `import keyhole` imports none of these modules."""
