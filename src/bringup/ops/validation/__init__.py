"""`ops.check`: is an operator right in every way that torch may call it?"""
