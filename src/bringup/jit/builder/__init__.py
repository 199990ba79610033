"""One build: its `request` and `key`, running it (`build`), where it looked for files
(`header_search`), and what to say when it failed (`diagnose`).
"""
