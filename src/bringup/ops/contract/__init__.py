"""What a kernel operator declares of its arguments (`constraints`) and results (`outputs`)."""
