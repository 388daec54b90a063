"""Real FlashInfer without and with the shim, side by side."""
