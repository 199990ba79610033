"""One build: what it is asked for, what makes it the same as another one, running it.

`request`: what was asked for, and its identity. `key`: digests of records. `build`: the run.
`header_search`: where it looked for files. `diagnose`: what to say when it failed.
"""
