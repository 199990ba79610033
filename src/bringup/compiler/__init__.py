"""The torch.compile backend and the dialects."""
