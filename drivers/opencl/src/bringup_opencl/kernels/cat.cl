// Of each tensor a piece goes into every row: all elements from the dimension on.
#define PIECE(i)                              \
  if (place < n##i / rows) {                  \
    out[at] = t##i[row * (n##i / rows) + place]; \
    continue;                                 \
  }                                           \
  place -= n##i / rows;

kernel void cat(global const T* t0, long n0, global const T* t1, long n1,
                global const T* t2, long n2, global const T* t3, long n3,
                global const T* t4, long n4, global const T* t5, long n5,
                global const T* t6, long n6, global const T* t7, long n7,
                global const T* t8, long n8, global const T* t9, long n9,
                global const T* t10, long n10, global const T* t11, long n11,
                global const T* t12, long n12, global const T* t13, long n13,
                global const T* t14, long n14, global const T* t15, long n15,
                global const T* t16, long n16, global const T* t17, long n17,
                global const T* t18, long n18, global const T* t19, long n19,
                global const T* t20, long n20, global const T* t21, long n21,
                global const T* t22, long n22, global const T* t23, long n23,
                global const T* t24, long n24, global const T* t25, long n25,
                global const T* t26, long n26, global const T* t27, long n27,
                global const T* t28, long n28, global const T* t29, long n29,
                global T* out, long extent, long step, long count) {
  // With a single element along the dimension, there is a single tensor that has any.
  const long length = extent == 1 ? count : extent * step, rows = count / length;
  for (long at = get_global_id(0); at < count; at += get_global_size(0)) {
    const long row = at / length;
    long place = at % length;
    PIECE(0) PIECE(1) PIECE(2) PIECE(3) PIECE(4) PIECE(5) PIECE(6) PIECE(7) PIECE(8) PIECE(9)
    PIECE(10) PIECE(11) PIECE(12) PIECE(13) PIECE(14) PIECE(15) PIECE(16) PIECE(17) PIECE(18)
    PIECE(19) PIECE(20) PIECE(21) PIECE(22) PIECE(23) PIECE(24) PIECE(25) PIECE(26) PIECE(27)
    PIECE(28) PIECE(29)
  }
}
