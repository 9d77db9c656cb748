# python/keyhole/torch_select/__init__.py
"""Selection on torch tensors; call.py is the entry point. Loaded by the first call with a tensor."""
