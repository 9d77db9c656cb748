# python/keyhole/integrations/__init__.py
"""Keyhole inside of other libraries; each module is imported by those who use it."""
