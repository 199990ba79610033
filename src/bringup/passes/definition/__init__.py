"""What an author of a pass writes.

`base`: the kinds of passes. `hooks`: the forms of hooks. `context`: what a hook knows of its run.
`stages`: when a pass runs. `expressions`: patterns stated by `@pattern`.
"""
