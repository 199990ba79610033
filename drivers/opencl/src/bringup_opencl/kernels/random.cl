// random_ of integers: one of the whole numbers from the first to the last, all as likely.
#define LARGEST ((T)(-1) < 0 ? (long)(~0ul >> (65 - 8 * sizeof(T))) : (long)(T)(-1))

T drawn(bringup_random random, long first, long last) {
  const ulong count = (ulong)last - (ulong)first + 1;
  const ulong bits = bringup_random_pair(random, 0);
  // All numbers of 64 bits are one more than an integer has room for.
  return (T)((ulong)first + (count == 0 ? bits : bits % count));
}

T random_all(T self, bringup_random random) { return drawn(random, 0, LARGEST); }

T random_to(T self, long to, bringup_random random) { return drawn(random, 0, to - 1); }

T random_from(T self, long from, const long* to, bringup_random random) {
  return drawn(random, from, to != 0 ? *to - 1 : LARGEST);
}
