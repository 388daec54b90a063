"""How the shim reaches every process of an engine: launcher, multiprocessing children, plugins; and names that were bound before it came."""
