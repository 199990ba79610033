"""Tables, JSON: renders what others return."""
