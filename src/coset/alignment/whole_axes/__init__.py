"""A lean coordinate ascent for groups whose factors move whole axes of tensors."""
