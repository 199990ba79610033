"""One build: its request and key, running it, where it looked for files, why it failed."""
