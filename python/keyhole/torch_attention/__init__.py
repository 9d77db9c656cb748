# python/keyhole/torch_attention/__init__.py
"""Attention on torch tensors; call.py is the entry point. Loaded by the first call with a tensor, never by `import
keyhole`.
"""
