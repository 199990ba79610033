// What kernels over images share: an element of a tensor of any layout, by its four strides.
#define AT(t, n, c, y, x) t[(n) * t##_n + (c) * t##_c + (y) * t##_y + (x) * t##_x]
