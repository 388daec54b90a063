"""The only places where a workspace touches the world."""
