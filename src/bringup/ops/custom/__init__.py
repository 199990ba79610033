"""Python functions as operators: `custom_op`, `structured_arguments`, and `library`, by name."""
