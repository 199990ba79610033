"""One build: what it is asked for, what makes it the same as another one, running it.

`build`: the request and the run. `key`: its identity. `search`: where it looked for files.
`diagnose`: what to say when it failed.
"""
