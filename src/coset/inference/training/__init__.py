"""The training loop that all trained methods share: stacks of members, step by step."""
