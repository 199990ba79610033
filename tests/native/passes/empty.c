/* A library that exports nothing that bringup looks for. */
int bringup_register_nothing(void);
int bringup_register_nothing(void) { return 0; }
