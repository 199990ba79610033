"""A C driver becomes a torch.device."""
