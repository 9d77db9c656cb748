# python/keyhole/torch_attention/__init__.py
"""Attention on torch tensors: call.py is the way in. Loaded when the first tensor comes, never by `import keyhole`."""
