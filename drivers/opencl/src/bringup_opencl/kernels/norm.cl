// The p-norm: p is 2, 1, 0, an infinity or any other number.
typedef struct {
  T power, total;
} norm_state;
void norm_start(norm_state* s, T power) {
  s->power = power;
  s->total = power == -INFINITY ? (T)INFINITY : (T)0;
}
void norm_join(norm_state* s, T part) {
  if (s->power == INFINITY) {
    s->total = part != part || part > s->total ? part : s->total;
  } else if (s->power == -INFINITY) {
    s->total = part != part || part < s->total ? part : s->total;
  } else {
    s->total += part;
  }
}
void norm_add(norm_state* s, T value, long index) {
  const T size = fabs(value);
  norm_join(s, s->power == 2              ? value * value
               : s->power == 0            ? (T)(value != 0)
               : fabs(s->power) == INFINITY || s->power == 1 ? size
                                          : pow(size, s->power));
}
void norm_merge(norm_state* s, const norm_state* o) { norm_join(s, o->total); }
void norm_result(const norm_state* s, long count, T* value) {
  const bool plain = s->power == 0 || s->power == 1 || fabs(s->power) == INFINITY;
  *value = plain ? s->total : s->power == 2 ? sqrt(s->total) : pow(s->total, 1 / s->power);
}
