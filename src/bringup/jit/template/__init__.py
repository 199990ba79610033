"""Sources with macros: `template` declares them, `params` is a call's set, `glue` the entry."""
