"""What is special to one engine: changes to its modules, applied when they are imported, each with a name that FI_SHIM_DISABLE knows."""
