// One state for each result, or for each thread that shares one: start, add, merge, result.
#define SUMS(name, made)                                                               \
  typedef struct {                                                                     \
    T total, lost;                                                                     \
  } name##_state;                                                                      \
  void name##_start(name##_state* s) { s->total = s->lost = 0; }                       \
  void name##_add(name##_state* s, T value, long index) {                              \
    const T y = value - s->lost, t = s->total + y;                                     \
    s->lost = (t - s->total) - y;                                                      \
    s->total = t;                                                                      \
  }                                                                                    \
  void name##_merge(name##_state* s, const name##_state* o) { name##_add(s, o->total, 0); } \
  void name##_result(const name##_state* s, long count, T* value) { *value = made; }
SUMS(sum, s->total)
SUMS(mean, s->total / (T)count)

#define LARGEST(name, better)                                                          \
  typedef struct {                                                                     \
    T best;                                                                            \
    long place;                                                                        \
  } name##_state;                                                                      \
  void name##_start(name##_state* s) { s->best = 0, s->place = -1; }                   \
  void name##_offer(name##_state* s, T value, long place) {                            \
    const bool first = s->place < 0, earlier = place < s->place;                       \
    const bool is_nan = value != value, was_nan = s->best != s->best;                  \
    const bool wins = is_nan ? !was_nan || earlier : !was_nan && (value better s->best || \
                      (value == s->best && earlier));                                  \
    if (first || wins) s->best = value, s->place = place;                              \
  }                                                                                    \
  void name##_add(name##_state* s, T value, long index) { name##_offer(s, value, index); } \
  void name##_merge(name##_state* s, const name##_state* o) {                          \
    if (o->place >= 0) name##_offer(s, o->best, o->place);                             \
  }
#define VALUE(name, better)  \
  LARGEST(name, better)      \
  void name##_result(const name##_state* s, long count, T* value) { *value = s->best; }
#define PLACE(name, better)  \
  LARGEST(name, better)      \
  void name##_result(const name##_state* s, long count, T* value) { *value = s->place; }
#define BOTH(name, better)   \
  LARGEST(name, better)      \
  void name##_result(const name##_state* s, long count, T* value, long* index) { \
    *value = s->best, *index = s->place;                                         \
  }
VALUE(amax, >)
VALUE(amin, <)
BOTH(max_with_index, >)
BOTH(min_with_index, <)
PLACE(argmax, >)
PLACE(argmin, <)

// True and false, and products.
#define JOINED(name, first, step, made)                                       \
  typedef struct {                                                            \
    T joined;                                                                 \
  } name##_state;                                                             \
  void name##_start(name##_state* s) { s->joined = first; }                   \
  void name##_add(name##_state* s, T value, long index) { s->joined = step; } \
  void name##_merge(name##_state* s, const name##_state* o) {                 \
    const T value = o->joined;                                                \
    s->joined = step;                                                         \
  }                                                                           \
  void name##_result(const name##_state* s, long count, T* value) { *value = made; }
JOINED(all, 1, s->joined != 0 && value != 0, s->joined)
JOINED(any, 0, s->joined != 0 || value != 0, s->joined)
JOINED(prod, 1, s->joined * value, s->joined)
