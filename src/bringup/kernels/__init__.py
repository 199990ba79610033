"""The operators that bringup ships."""
