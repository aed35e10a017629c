"""The shipped task set: small packages written for it, and bugs in them."""
