// Reductions: a class template each, one object for each result. Sums are kept in double, so that
// their order does not matter to float.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <class T>
struct sum {
  Wide<T> total = 0;
  void add(T value, int64_t) { total += value; }
  T result(int64_t) const { return static_cast<T>(total); }
};

// Of no elements: NaN.
template <class T>
struct mean {
  double total = 0;
  void add(T value, int64_t) { total += value; }
  T result(int64_t count) const { return static_cast<T>(total / static_cast<double>(count)); }
};

// The first of the greatest elements; a NaN is greater than all.
template <class T>
struct Greatest {
  T best{};
  int64_t index = -1;
  void add(T value, int64_t number) {
    if (index < 0 || value > best || (value != value && best == best)) {
      best = value;
      index = number;
    }
  }
};

template <class T>
struct amax : Greatest<T> {
  T result(int64_t) const { return this->best; }
};

template <class T>
struct max : Greatest<T> {
  T result(int64_t) const { return this->best; }
};

template <class T>
struct max_with_index : Greatest<T> {
  void result(int64_t, T& value, int64_t& at) const {
    value = this->best;
    at = this->index;
  }
};

template <class T>
struct argmax : Greatest<T> {
  int64_t result(int64_t) const { return this->index; }
};

// The norms of linalg.vector_norm, for any order.
template <class T>
struct linalg_vector_norm {
  double order;
  double total = 0;
  bool first = true;

  explicit linalg_vector_norm(T ord) : order(static_cast<double>(ord)) {}

  void add(T value, int64_t) {
    const double size = std::fabs(static_cast<double>(value));
    if (order == 2) {
      total += size * size;
    } else if (order == 1) {
      total += size;
    } else if (order == 0) {
      total += size != 0 ? 1 : 0;
    } else if (std::isinf(order)) {
      const bool beyond = order > 0 ? size > total : size < total;
      if (first || beyond || (size != size && total == total)) total = size;
    } else {
      total += std::pow(size, order);
    }
    first = false;
  }

  T result(int64_t) const {
    if (order == 2) return static_cast<T>(std::sqrt(total));
    if (order == 1 || order == 0 || std::isinf(order)) return static_cast<T>(total);
    return static_cast<T>(std::pow(total, 1 / order));
  }
};
