"""`bringup bench`: `subject` finds operator and arguments, `measure` times, `show` prints."""
