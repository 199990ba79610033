/* Needs a function that nobody has: the loader has to refuse it. */
int nobody_defines_this(void);
int run(void);
int run(void) { return nobody_defines_this(); }
